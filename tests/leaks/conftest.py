"""What a search for holders finds does not depend on how fast the machine is, nor on what else the process has met."""

import pytest

from disposescope.scopes.leaks import LeakDetector, Snapshot, assert_no_leaks


@pytest.fixture(autouse=True)
def searches_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (LeakDetector.report, Snapshot.report, assert_no_leaks):
        defaults = function.__kwdefaults__
        monkeypatch.setitem(defaults, "time_limit_s", 60.0)
        if "object_limit" in defaults:
            monkeypatch.setitem(defaults, "object_limit", 10**8)
