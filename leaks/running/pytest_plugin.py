"""The pytest plugin: tests that must not leak tensors. Installed with the package.

``@pytest.mark.no_tensor_leaks`` on a test, a class or a module watches the call of each test,
``--tensor-leaks`` that of every test; what a test leaves behind fails it, and the report is the
failure's text. The fixture ``tensor_leaks`` is an open detector. Until one of them asks, nothing of
the library is imported.
"""

from __future__ import annotations

import fnmatch
import gc
import inspect
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, get_args

import pytest

if TYPE_CHECKING:
    from ..detector.detector import LeakDetector
    from ..report.leaks import Leak

__all__ = [
    "pytest_addoption",
    "pytest_configure",
    "pytest_pyfunc_call",
    "pytest_terminal_summary",
    "tensor_leaks",
]

_MARK: Final = "no_tensor_leaks"
_PROPERTY: Final = "tensor_leaks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tensor-leaks``."""
    group = parser.getgroup("disposescope", "tensors that outlive their tests")
    group.addoption(
        "--tensor-leaks",
        action="store_true",
        help="fail every test that leaves tensors behind, as if it were marked with no_tensor_leaks",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "no_tensor_leaks(allow=(), warmup=0): fail the test where it leaves tensors behind. allow: kinds of leak "
        "('view'), and patterns of sites ('*/cache.py', '*/cache.py:31', 'Model.forward'). warmup: how often the test "
        "is run before it is watched, so that caches are filled.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Watch the call of a test that must not leak."""
    marker = pyfuncitem.get_closest_marker(_MARK)
    if marker is None and not pyfuncitem.config.getoption("tensor_leaks", False):
        return (yield)
    from ..detector.detector import LeakDetector

    allow, warmup = _wishes(marker)
    for _ in range(warmup):
        _run_once(pyfuncitem)
    # What earlier tests left in cycles is not this test's.
    gc.collect()
    with LeakDetector() as detector:
        result = yield
        # The arguments of the call are gone; what only a cycle keeps is told as such.
        _check(pyfuncitem, detector, allow)
    return result


def _check(item: pytest.Item, detector: LeakDetector, allow: tuple[str, ...]) -> None:
    from ...scopes.errors import LeakError
    from ..detector.detector import check_nothing_is_left

    try:
        check_nothing_is_left(detector, allowed=lambda leak: _is_allowed(leak, allow))
    except LeakError as error:
        item.user_properties.append((_PROPERTY, f"{error.count} tensors, {error.nbytes:,} bytes"))
        pytest.fail(f"the test leaves tensors behind: {error}", pytrace=False)


def _wishes(marker: pytest.Mark | None) -> tuple[tuple[str, ...], int]:
    """What a marker allows, and how many runs are to go before."""
    if marker is None:
        return (), 0
    unknown = marker.kwargs.keys() - {"allow", "warmup"}
    if unknown or marker.args:
        given = repr(marker.args[0] if marker.args else sorted(unknown)[0])
        raise pytest.UsageError(f"no_tensor_leaks takes allow= and warmup=, not {given}")
    allow: Any = marker.kwargs.get("allow", ())
    patterns: tuple[Any, ...] = (allow,) if type(allow) in (str, int) else tuple(allow)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise pytest.UsageError(f"no_tensor_leaks: allow= takes kinds of leak and patterns of sites, not {allow!r}")
    warmup: Any = marker.kwargs.get("warmup", 0)
    if not isinstance(warmup, int) or warmup < 0:
        raise pytest.UsageError(f"no_tensor_leaks: warmup= is a number of runs, not {warmup!r}")
    return patterns, warmup


def _is_allowed(leak: Leak, allow: tuple[str, ...]) -> bool:
    from ..report.leaks import LeakKind

    if leak.kind in allow:
        return True
    site = leak.site
    if site is None:
        return False
    names = (site.file, f"{site.file}:{site.line}", site.function)
    patterns = set(allow).difference(get_args(LeakKind))
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _run_once(item: pytest.Function) -> None:
    """Run a test as pytest does, for what it leaves in caches."""
    function = item.obj
    if inspect.iscoroutinefunction(function):
        raise pytest.UsageError(
            "no_tensor_leaks: warmup= cannot run a coroutine function; run it in a loop in the test"
        )
    arguments = {name: item.funcargs[name] for name in inspect.signature(function).parameters if name in item.funcargs}
    function(**arguments)


@pytest.fixture
def tensor_leaks() -> Generator[LeakDetector]:
    """An open `LeakDetector`, for ``tensor_leaks.report()`` and ``assert_no_leaks(tensor_leaks)`` in the test."""
    from ..detector.detector import LeakDetector

    with LeakDetector() as detector:
        yield detector


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests that left tensors behind."""
    rows = [
        (report.nodeid, value)
        for report in terminalreporter.getreports("failed")
        for name, value in report.user_properties
        if name == _PROPERTY and report.when == "call"
    ]
    if rows:
        terminalreporter.section("tensor leaks")
        for node, value in rows:
            terminalreporter.write_line(f"{node}: {value}")
