"""The assertion for tests: nothing that was born is still there."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast, final, overload

from .._errors import LeakError, LeakWarning
from ._collection import collection_paused
from ._detector import LeakDetector, take_snapshot
from ._snapshot import Snapshot

if TYPE_CHECKING:
    from types import TracebackType

    from ._leak import Leak
    from ._report import Report

__all__ = ["assert_no_leaks", "check_nothing_is_left"]

P = ParamSpec("P")
R = TypeVar("R")

_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE
_ANY_GENERATOR: Final = 0x220  # inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


@overload
def assert_no_leaks(since: LeakDetector | Snapshot, /, *, time_limit_s: float = 5.0) -> None: ...
@overload
def assert_no_leaks(*, time_limit_s: float = 5.0) -> NoLeaks: ...
def assert_no_leaks(since: object = None, /, *, time_limit_s: float = 5.0) -> NoLeaks | None:
    """Raise `LeakError` where something that was born is still alive, or was disposed under a live reference.

    ``with assert_no_leaks():`` watches the block, in all threads, and raises at its end; an exception that leaves the
    block passes through unchanged. ``@assert_no_leaks()`` does so for each call of a function.
    ``assert_no_leaks(detector)`` and ``assert_no_leaks(snapshot)`` look at once, for what was born under the detector,
    or is not in the snapshot. A disposed resource that only a left-over variable still names is no leak.

    Parameters
    ----------
    since : LeakDetector or Snapshot, optional
        Look at once. Without it nothing happens before the result is entered (a `LeakWarning` tells if it never is).
    time_limit_s : float, default 5.0
        How long holders are searched for.

    Raises
    ------
    LeakError
        Something leaked; its message is the report, with a line and a holder for each site.
    TypeError
        `since` is neither.

    Examples
    --------
    >>> import disposescope as ds
    >>> history = []
    >>> with ds.assert_no_leaks():
    ...     with ds.dispose_scope():
    ...         total = float((ds.arange(4) ** 2).sum())
    >>> try:
    ...     with ds.assert_no_leaks():
    ...         history.append(ds.zeros(3))
    ... except ds.LeakError as error:
    ...     error.count, error.nbytes
    (1, 24)
    """
    if since is None:
        return NoLeaks(time_limit_s)
    if isinstance(since, LeakDetector):
        _check(since.take_snapshot(), time_limit_s)
    elif isinstance(since, Snapshot):
        _check(take_snapshot().since(since), time_limit_s)
    else:
        raise TypeError(
            f"assert_no_leaks: since must be a LeakDetector or a Snapshot, not a {type(since).__qualname__}"
        )
    return None


@final
class NoLeaks:
    """The block of ``with assert_no_leaks():``."""

    _detector: LeakDetector | None = None
    _used = False

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Decorate a function or coroutine function: each call is watched."""
        self._used = True
        code: CodeType | None = getattr(function, "__code__", None)
        flags = 0 if code is None else code.co_flags
        if flags & _ANY_GENERATOR:
            raise TypeError(
                "assert_no_leaks() decorates functions and coroutine functions; it cannot watch a generator"
            )
        if flags & _COROUTINE:

            @functools.wraps(function)
            async def watched_coroutine(*args: P.args, **kwargs: P.kwargs) -> object:
                with NoLeaks(self._time_limit_s):
                    return await cast("Awaitable[object]", function(*args, **kwargs))

            return cast("Callable[P, R]", watched_coroutine)

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with NoLeaks(self._time_limit_s):
                return function(*args, **kwargs)

        return watched

    def __enter__(self) -> LeakDetector:
        if self._used:
            raise RuntimeError("assert_no_leaks() is used for one with statement; write assert_no_leaks() in each")
        self._used = True
        self._detector = LeakDetector()
        return self._detector.__enter__()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        detector, self._detector = self._detector, None
        if detector is None:
            raise RuntimeError("assert_no_leaks() was left without having been entered")
        detector.__exit__(exc_type, exc, traceback)
        if exc_type is None:
            with collection_paused():
                _check(detector.take_snapshot(), self._time_limit_s)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                "assert_no_leaks() was never entered, so it checked nothing: write `with assert_no_leaks():`, "
                "or assert_no_leaks(detector)",
                LeakWarning,
                stacklevel=2,
            )


def check_nothing_is_left(
    detector: LeakDetector, *, allowed: Callable[[Leak], bool], time_limit_s: float = 5.0
) -> None:
    """Raise `LeakError` where what was born under a detector is there, unless it is of a leak that is allowed."""
    with collection_paused():
        report = detector.take_snapshot().report(time_limit_s=time_limit_s)
        leaks = tuple(leak for leak in report.leaks if not allowed(leak))
        if len(leaks) < len(report.leaks):
            rest = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
            count = sum(leak.count for leak in leaks)
            report = replace(report, leaks=leaks, count=count, nbytes=max(0, report.nbytes - rest))
        _refuse(report)


def _check(snapshot: Snapshot, time_limit_s: float) -> None:
    _refuse(snapshot.report(time_limit_s=time_limit_s))


def _refuse(report: Report) -> None:
    if report.leaks:
        raise LeakError(str(report), count=report.count, nbytes=report.nbytes)
