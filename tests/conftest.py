"""What holds after every test: no scope is left current, nobody listens, and the counters start from zero."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import disposescope as ds
from disposescope.scopes._current import CURRENT
from disposescope.scopes._instruments import LISTENERS


@pytest.fixture(scope="session", autouse=True)
def what_was_imported_is_not_collected_again() -> None:
    # The tests below collect often, and a collection looks at every object of PyTorch each time unless it is frozen.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    gc.collect()
    ds.reset_statistics()
    before = CURRENT.get(), list(LISTENERS)
    yield
    assert (CURRENT.get(), list(LISTENERS)) == before
