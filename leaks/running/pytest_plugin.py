"""The pytest plugin for tests that must not leak tensors. It is installed with the package.

``@pytest.mark.no_tensor_leaks`` on a test, a class or a module watches the call of each test;
``--tensor-leaks`` watches that of every test. A test fails if it leaves tensors behind, with the
report as the text of the failure. The fixture ``tensor_leaks`` is an open detector. Nothing of the
library is imported before one of these is used.

The fixture ``assert_freed`` is called with models, or other objects, that must be gone once the
test function has returned. The test fails if something of them is left, with the chains that hold
it.
"""

from __future__ import annotations

import difflib
import fnmatch
import gc
import inspect
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import pytest

if TYPE_CHECKING:
    from ..detector.detector import LeakDetector
    from ..detector.freed import AssertFreed
    from ..report.leaks import Leak

__all__ = [
    "assert_freed",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_pyfunc_call",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
    "tensor_leaks",
]

_MARK: Final = "no_tensor_leaks"
_PROPERTY: Final = "tensor_leaks"
"""The property of a failed test with the first line of the report."""
_STEP_OF_RAISES: Final = f" -> {pytest.ExceptionInfo.__name__}._excinfo"
"""The step of a cycle that leads through the result of ``pytest.raises()``."""
_FREED: Final = pytest.StashKey[list["AssertFreed"]]()
"""The checks of the fixture ``assert_freed`` of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tensor-leaks``."""
    group = parser.getgroup("disposescope", "tensors that outlive their tests")
    group.addoption(
        "--tensor-leaks",
        action="store_true",
        help="fail every test that leaves tensors behind, as if it were marked with no_tensor_leaks",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "no_tensor_leaks(allow=(), warmup=0): fail the test where it leaves tensors behind. allow: kinds of leak "
        "('view'), and patterns of sites ('*/cache.py', '*/cache.py:31', 'Model.forward'). warmup: how often the test "
        "is run before it is watched, so that caches are filled.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse markers that are misspelled, before any test runs.

    Raises
    ------
    pytest.UsageError
        A marker has an argument that it does not take, allows an unknown kind of leak, or has a
        name that is nearly ours.
    """
    # A worker of pytest-xdist cannot refuse to collect: there `pytest_runtest_setup` fails tests.
    if not hasattr(config, "workerinput"):
        for item in items:
            _check_markers(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose marker is misspelled."""
    try:
        _check_markers(item)
    except pytest.UsageError as error:
        message = str(error)
    else:
        return
    pytest.fail(message, pytrace=False)


def _check_markers(item: pytest.Item) -> None:
    for marker in item.iter_markers():
        try:
            if marker.name == _MARK:
                _arguments_of(marker)
            elif difflib.get_close_matches(marker.name, [_MARK], 1, 0.85):
                raise pytest.UsageError(f"there is no marker {marker.name!r}; did you mean {_MARK!r}?")
        except pytest.UsageError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Watch the call of a test that must not leak."""
    marker = pyfuncitem.get_closest_marker(_MARK)
    if marker is None and not pyfuncitem.config.getoption("tensor_leaks", False):
        result = yield
        _check_freed(pyfuncitem)
        return result
    from ..detector.detector import LeakDetector

    allow, warmup = _arguments_of(marker)
    for _ in range(warmup):
        _run_once(pyfuncitem)
    # Free the cycles of earlier tests, which are not this test's.
    gc.collect()
    with LeakDetector() as detector:
        result = yield
        # Here the arguments and variables of the call are gone. What the test itself says must be
        # freed comes first: it is told with all that holds it.
        _check_freed(pyfuncitem)
        _check(pyfuncitem, detector, allow)
    return result


def _check_freed(item: pytest.Item) -> None:
    """Fail a test that gave objects to `assert_freed`, some of which are left."""
    from ...scopes.base.errors import LeakError

    none: list[AssertFreed] = []
    for freed in item.stash.get(_FREED, none):
        try:
            freed.check()
        except LeakError as error:
            found = error
        else:
            continue
        # Not inside the handler: the report would be printed a second time, as the cause.
        pytest.fail(f"the test does not free what it was to free: {found}", pytrace=False)


def _check(item: pytest.Item, detector: LeakDetector, allow: tuple[str, ...]) -> None:
    from ...scopes.base.errors import LeakError
    from ..detector.detector import check_nothing_is_left

    try:
        check_nothing_is_left(detector, allowed=lambda leak: _is_allowed(leak, allow))
    except LeakError as error:
        found = error
    else:
        return
    item.user_properties.append((_PROPERTY, str(found).partition("\n")[0]))
    # Not inside the handler: the report would be printed a second time, as the cause.
    pytest.fail(f"the test leaves tensors behind: {found}", pytrace=False)


def _arguments_of(marker: pytest.Mark | None) -> tuple[tuple[str, ...], int]:
    """Return the arguments ``allow`` and ``warmup`` of a marker."""
    if marker is None:
        return (), 0
    unknown = marker.kwargs.keys() - {"allow", "warmup"}
    if unknown or marker.args:
        given = repr(marker.args[0] if marker.args else sorted(unknown)[0])
        raise pytest.UsageError(f"no_tensor_leaks takes allow= and warmup=, not {given}")
    allow: Any = marker.kwargs.get("allow", ())
    patterns: tuple[str, ...] = (allow,) if type(allow) in (str, int) else tuple(allow)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise pytest.UsageError(f"no_tensor_leaks: allow= takes kinds of leak and patterns of sites, not {allow!r}")
    from ..report.leaks import LeakKind

    kinds: tuple[str, ...] = get_args(LeakKind)
    for pattern in patterns:
        # A name that is close to a kind is taken for a misspelled kind; others may be functions.
        if pattern not in kinds and (near := difflib.get_close_matches(pattern, kinds, 1, 0.75)):
            raise pytest.UsageError(f"no_tensor_leaks: there is no kind of leak {pattern!r}; did you mean {near[0]!r}?")
    warmup: Any = marker.kwargs.get("warmup", 0)
    if not isinstance(warmup, int) or warmup < 0:
        raise pytest.UsageError(f"no_tensor_leaks: warmup= is a number of runs, not {warmup!r}")
    return patterns, warmup


def _is_allowed(leak: Leak, allow: tuple[str, ...]) -> bool:
    from ..report.leaks import LeakKind

    if leak.kind in allow or _is_by_raises(leak):
        return True
    site = leak.site
    if site is None:
        return False
    names = (site.file, f"{site.file}:{site.line}", site.function)
    patterns = set(allow).difference(get_args(LeakKind))
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _is_by_raises(leak: Leak) -> bool:
    """Return whether a cycle is that of ``pytest.raises() as error`` in a function of the test.

    The variable has the traceback, and the traceback the frame with the variable. Each such test
    makes this cycle.
    """
    return leak.kind == "cycle" and all(_STEP_OF_RAISES in holder for holder in leak.holders)


def _run_once(item: pytest.Function) -> None:
    """Run a test as pytest does, to fill its caches."""
    function = item.obj
    if inspect.iscoroutinefunction(function):
        raise pytest.UsageError(
            "no_tensor_leaks: warmup= cannot run a coroutine function; run it in a loop in the test"
        )
    arguments = {name: item.funcargs[name] for name in inspect.signature(function).parameters if name in item.funcargs}
    function(**arguments)


@pytest.fixture
def tensor_leaks() -> Generator[LeakDetector]:
    """Yield an open `LeakDetector`, for ``report()`` and ``assert_no_leaks()`` of it."""
    from ..detector.detector import LeakDetector

    with LeakDetector() as detector:
        yield detector


@pytest.fixture
def assert_freed(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function: the objects that it is given must be gone once the test has returned."""
    from ..detector.freed import assert_freed as check_of

    test = cast("pytest.Item", request.node)  # pyright: ignore[reportUnknownMemberType] (pytest does not say)
    none: list[AssertFreed] = []
    checks = test.stash.setdefault(_FREED, none)

    def freed(*things: object, collect: bool = True) -> None:
        checks.append(check_of(*things, collect=collect))

    return freed


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
