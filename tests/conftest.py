"""Check after every test that no scope is current and no listener left, and reset the counters."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import disposescope as ds
from disposescope.leaks import LeakDetector, Snapshot, assert_no_leaks
from disposescope.leaks.holders.holders import Holders
from disposescope.leaks.holders.references import hide_types
from disposescope.leaks.holders.search import Garbage, Search
from disposescope.scopes.context import CURRENT, HOOKS
from disposescope.scopes.identity import LIVE, release

# Where tests share the cores, threads of PyTorch beside them take more time than they save.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

SEARCH_LIMITS = {"object_limit": 10**8}

# How long an example takes is a matter of the machine, and asserted nowhere. The examples are the
# same in each run, and what an earlier run found is no part of them.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# For a second run of what has been tested with many: --hypothesis-profile=few
settings.register_profile("few", settings.get_profile("any machine"), max_examples=10)
# For a search that goes on where the last one ended: --hypothesis-profile=others
settings.register_profile("others", deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# What a search for holders finds does not depend on how fast the machine is, nor on what else the
# process has met.
for function in (LeakDetector.report, Snapshot.report, assert_no_leaks):
    defaults = function.__kwdefaults__
    defaults.update({name: limit for name, limit in SEARCH_LIMITS.items() if name in defaults})

# Frames of pytest lead to all tests that were collected. The programs tested have no such thing,
# and a report about a whole program walks through everything.
hide_types(pytest.Config, pytest.Function, pytest.PytestPluginManager, pytest.Session)

handler_name: Any = np._core.multiarray.get_handler_name


def without_coverage_where_much_is_walked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Walk untraced where tests have imported much: with coverage it takes half a minute.

    Short walks are traced, and cover the same code.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        trace = sys.gettrace()
        if trace is None or len(gc.get_objects()) + gc.get_freeze_count() < 200_000:
            return function(*args, **kwargs)
        sys.settrace(None)
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(trace)

    return run


for walking, name in ((Search, "from_roots"), (Garbage, "__init__"), (Holders, "retained")):
    setattr(walking, name, without_coverage_where_much_is_walked(getattr(walking, name)))


when_frozen: tuple[object, int] = None, 0


def what_was_there_before_is_not_collected_again(file: object) -> None:
    # A collection looks at every object of PyTorch, JAX and the tests each time unless it is
    # frozen; parts of the libraries come late.
    global when_frozen
    before, modules = when_frozen
    if file != before or len(sys.modules) > modules + 50:
        when_frozen = file, len(sys.modules)
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test that is marked so without coverage, and the programs that it starts."""
    trace = sys.gettrace()
    if trace is None or item.get_closest_marker("unmeasured") is None:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
            patch.delenv(name)
        sys.settrace(None)
        try:
            return (yield)
        finally:
            sys.settrace(trace)


def no_other_thread_computes() -> None:
    """Wait for threads that earlier tests have left.

    What is disposed while such a thread computes keeps its memory for as long.
    """
    pending: Any = sys.modules.get("disposescope.tensors.torch.pending")
    if pending is None:
        return
    stacks_of_others = pending._stacks_of_others
    if stacks_of_others.__name__ == "_stacks_of_others":

        def without_the_runner() -> dict[int, list[Any]]:
            # xdist hears of further tests on a thread of its own, at any time.
            stacks = stacks_of_others()
            return {
                thread: stack
                for thread, stack in stacks.items()
                if not any("execnet" in code.co_filename for _, code, _ in stack)
            }

        pending._stacks_of_others = without_the_runner
    operations = pending.Operations()
    until = time.monotonic() + 300
    while in_flight := operations.in_flight():
        assert time.monotonic() < until, f"a thread of an earlier test still computes: {where(in_flight)}"
        time.sleep(0.001)


def where(threads: Iterable[int]) -> str:
    """The line that each of some threads is at."""
    frames = sys._current_frames()
    return "".join("".join(traceback.format_stack(frames[thread])[-1:]) for thread in threads if thread in frames)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the detector first.

    Its searches go through what all tests before have imported.
    """
    items.sort(key=lambda item: "/tests/leaks/" not in item.path.as_posix())


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    no_other_thread_computes()
    # Tests raise exceptions also where Python itself does not: before the line that turns it on.
    gc.enable()
    gc.collect()
    what_was_there_before_is_not_collected_again(request.path)
    # NumPy keeps the operands of a reduction that was refused for ever, and what one test leaves is
    # not the next one's.
    for entry in list(LIVE.values()):
        release(entry)
    ds.reset_statistics()
    before = CURRENT.get(), list(HOOKS.listeners), handler_name()
    yield
    assert (CURRENT.get(), list(HOOKS.listeners), handler_name()) == before
