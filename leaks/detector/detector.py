"""The detector, which reads a window of the log of births, and the assertion that nothing leaks."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar, cast, final, overload

from ...scopes.base.errors import LeakError, LeakWarning
from ...scopes.base.process import install_imported, load_frameworks
from ...scopes.framework import FRAMEWORKS
from ...scopes.identity import DEAD, LIVE, Entry, catch_up
from ..births.lines import with_totals
from ..births.log import DISPOSALS, LOG, BirthRows, RecordedMemory, Row, find_recorded_memory
from ..holders.references import hide_types
from ..report.report import OBJECT_LIMIT, Report, without_growth_of_graphs
from ..report.timeline import Timeline
from ..verdicts.without_tensors import native_growth
from .collection import collection_paused
from .recording import RunRecorder
from .snapshot import Snapshot, survey
from .watching import Window, counts, mark, recall

if TYPE_CHECKING:
    from collections.abc import Container, Hashable
    from types import TracebackType

    from ..report.leaks import Leak

__all__ = [
    "LeakDetector",
    "assert_no_leaks",
    "check_nothing_is_left",
    "live_tensors",
    "take_snapshot",
]


@final
class LeakDetector:
    """Watches births and disposals while it is open, and reports what is still alive and why.

    ``with LeakDetector() as detector:`` watches the block, in all threads. While any detector is
    open, the message of a `DisposedError` says where the resource was born and where it was
    disposed. Several detectors may be open at once; each reports what was born while it was open.
    If a detector is entered again while it is open, it stays open until it has been left as many
    times as it was entered. If it is entered again after that, it starts anew.

    It keeps nothing alive: it refers to resources weakly, and keeps only code objects of the
    program.

    Parameters
    ----------
    frames : int, default 1
        How many lines are kept of each birth: the line of user code, and the lines that called it.
    sample_nbytes : int, optional
        Keep one birth for so many bytes on average, chosen at random, instead of all births. Then
        counts and bytes are estimates, which are right on average, and the program is hardly slowed
        down.
    timeline_s : float, optional
        Record resident memory, live bytes, passes and scopes, with one sample in so many seconds.
        Without it no thread is started.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.LeakDetector() as detector:
    ...     with ds.dispose_scope("step") as step:
    ...         kept = step.move_to_outer(ds.zeros((10, 10), dtype="float32") + 1)
    >>> [record] = detector.take_snapshot()
    >>> str(record), record.nbytes, record.scope, record.generation
    ('Tensor float32 (10, 10)', 400, 'step', 1)
    """

    __slots__ = ("__weakref__", "_depth", "_frames", "_lock", "_recorder", "_sample_nbytes", "_timeline_s", "_window")

    def __init__(self, *, frames: int = 1, sample_nbytes: int | None = None, timeline_s: float | None = None) -> None:
        if frames < 1:
            raise ValueError(f"frames must be at least 1, not {frames}")
        if sample_nbytes is not None and sample_nbytes < 1:
            raise ValueError(f"sample_nbytes must be at least 1, or None for every birth, not {sample_nbytes}")
        if timeline_s is not None and not timeline_s > 0:
            raise ValueError(f"timeline_s must be more than 0, or None for no time line, not {timeline_s}")
        self._lock = threading.Lock()
        self._recorder: RunRecorder | None = None
        self._timeline_s = timeline_s
        self._depth = 0
        self._frames = frames
        self._sample_nbytes = sample_nbytes
        self._window: Window | None = None

    def __enter__(self) -> Self:
        with self._lock:
            if self._depth == 0:
                window = Window(self._frames, self._sample_nbytes)
                recorder = None if self._timeline_s is None else RunRecorder(self._timeline_s)
                window.open()
                if recorder is not None:
                    try:
                        recorder.start()
                    except BaseException:
                        window.close()
                        raise
                self._window, self._recorder = window, recorder
            self._depth += 1
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        with self._lock:
            if self._depth == 0 or self._window is None:
                raise RuntimeError("this LeakDetector was left more often than it was entered")
            self._depth -= 1
            if self._depth == 0:
                if self._recorder is not None:
                    self._recorder.stop()
                self._window.close()

    def _entered(self) -> Window:
        """Return the window of the last time that the detector was entered."""
        if self._window is None:
            raise RuntimeError(
                "this LeakDetector has not been entered, so it watched nothing: "
                "write `with LeakDetector() as detector:` around the code to watch"
            )
        return self._window

    def take_snapshot(self) -> Snapshot:
        """Return the resources that were born under this detector and are still there.

        They are alive, or disposed under a live reference.

        Raises
        ------
        RuntimeError
            The detector has never been entered.
        """
        catch_up()
        window = self._entered()
        with collection_paused():
            return survey(
                _births_in(window),
                window.closings,
                lambda left_out: _memory_in(window, left_out),
                window.beginning,
                watched=True,
                until=window.until,
            )

    def memory(self) -> tuple[RecordedMemory, ...]:
        """Return the memory born under this detector that is still there, whatever refers to it."""
        return tuple(seen for pieces, _ in _memory_in(self._entered()) for seen in pieces)

    def report(
        self,
        *,
        object_limit: int = OBJECT_LIMIT,
        of_program: bool = False,
        died: bool = False,
        goes_on: bool = False,
        is_look: bool = False,
    ) -> Report:
        """Return the report of a snapshot taken now, with the timeline: see `Snapshot.report`.

        Raises
        ------
        RuntimeError
            The detector has never been entered.
        """
        with collection_paused():
            report = self.take_snapshot().report(
                object_limit=object_limit, of_program=of_program, died=died, goes_on=goes_on, is_look=is_look
            )
        timeline = self.timeline()
        native = native_growth(timeline)
        whole = replace(
            report,
            settings=replace(report.settings, frames=self._frames, sample_nbytes=self._sample_nbytes),
            count=report.count + len(native),
            leaks=(*report.leaks, *native),
            sites=with_totals(report.sites, self._entered().beginning),
            timeline=timeline,
        )
        return without_growth_of_graphs(whole)

    def timeline(self) -> Timeline:
        """Return the memory, passes and scopes of the run over time; empty without `timeline_s`."""
        return Timeline() if self._recorder is None else self._recorder.timeline()

    def mark(self, name: str = "mark") -> int:
        """End a pass of a loop: record what is live now for each line.

        So a report can tell what grows from pass to pass. The end of a scope ends a pass as well,
        with the name of the scope (or its line, where it has none).

        Parameters
        ----------
        name : str, default "mark"
            The name of the loop's passes. Give different loops different names.

        Returns
        -------
        int
            How many passes of that name there have been.

        Examples
        --------
        >>> import disposescope as ds
        >>> history = []
        >>> with ds.LeakDetector() as detector:
        ...     for step in range(3):
        ...         history.append(ds.zeros(10))
        ...         passes = detector.mark("step")
        >>> passes
        3
        """
        return mark(name)

    def __repr__(self) -> str:
        window = self._window
        entries, _ = ([], []) if window is None else LOG.entries(window.after, window.until)
        known = len(entries)
        return f"<LeakDetector {'open' if self._depth else 'closed'}, knows {known} births>"


hide_types(LeakDetector)


def take_snapshot() -> Snapshot:
    """Return all resources of this process that are there now.

    They are alive, or disposed under a live reference.

    Site, age and generation are known for those that were born while a `LeakDetector` was open, as
    long as that detector exists.

    Examples
    --------
    >>> import disposescope as ds
    >>> before = ds.take_snapshot()
    >>> kept = ds.ones(3)
    >>> [str(record) for record in ds.take_snapshot().compare_to(before).new]
    ['Tensor float64 (3,)']
    """
    load_frameworks()
    install_imported()
    catch_up()
    with collection_paused():
        return _survey_process()


def live_tensors() -> Snapshot:
    """Return all living resources of this process, the largest first.

    ``str()`` of it is a table.

    Examples
    --------
    >>> import disposescope as ds
    >>> weights = ds.zeros((500, 100))
    >>> max(record.nbytes for record in ds.live_tensors()) >= 400_000
    True
    """
    return take_snapshot().alive().largest_first()


def _births_in(window: Window) -> list[tuple[list[Entry], BirthRows]]:
    """Return the resources that were born in a window of the log, with their rows."""
    entries, rows = LOG.entries(window.after, window.until)
    # The log has no entries for resources that are recorded by their memory, or were disposed.
    others: dict[Entry, Row] = {}
    frameworks = FRAMEWORKS.with_own("reported_by_memory")
    kinds = {id(kind) for framework in frameworks for kind in framework.reported_by_memory}
    if kinds:
        for entry in list(LIVE.values()):
            if id(entry.kind) in kinds:
                row = recall(entry)
                if row is not None and row in window:
                    others[entry] = row
    for entry, (_, row) in DISPOSALS.copy().items():
        if row in window:
            others[entry] = row
    return [(entries, rows), _without(entries, others)]


def _without(entries: list[Entry], others: dict[Entry, Row]) -> tuple[list[Entry], BirthRows]:
    """Return those of `others` that are not among the entries, with their rows."""
    for entry in entries if others else ():
        others.pop(entry, None)
    return list(others), list(others.values())


def _memory_in(window: Window, left_out: Container[Hashable] = ()) -> list[tuple[list[RecordedMemory], BirthRows]]:
    """Return the memory born in a window, without identities that are left out."""
    if window.sample_nbytes is None:
        return _memory(window.after, window.until, left_out)
    # A sample may have kept the birth of memory and not that of the resource that stands for it:
    # leave out the memory of all living resources.
    by_memory = {
        id(kind) for framework in FRAMEWORKS.with_own("reported_by_memory") for kind in framework.reported_by_memory
    }
    owned = {
        identity
        for entry in list(LIVE.values())
        if id(entry.kind) not in by_memory and (resource := entry()) is not None
        for identity, _ in entry.kind.storages(resource)
    }
    return _memory(window.after, window.until, _Union(left_out, owned))


@final
class _Union:
    """A container of what is in one of two containers."""

    def __init__(self, first: Container[Hashable], second: Container[Hashable]) -> None:
        self._containers = first, second

    def __contains__(self, thing: object) -> bool:
        return any(thing in container for container in self._containers)


def _memory(after: int, until: int, left_out: Container[Hashable]) -> list[tuple[list[RecordedMemory], BirthRows]]:
    """Return the memory and the models born in a window of births, by framework."""
    found = [framework.live_memory(after, until) for framework in FRAMEWORKS.with_own("live_memory")]
    found += [framework.live_models(after, until) for framework in FRAMEWORKS.with_own("live_models")]
    return [find_recorded_memory(memory, left_out) for memory in found if memory is not None]


def _survey_process() -> Snapshot:
    births, _, closings, _ = counts()
    entries, rows = LOG.entries(0, births)
    known = set(entries)
    unrecorded: list[Entry] = []
    others: dict[Entry, Row] = {}
    for entry in [*list(LIVE.values()), *list(DEAD.values())]:
        if entry not in known:
            row = recall(entry)
            if row is None:
                unrecorded.append(entry)
            else:
                others[entry] = row
    return survey(
        [(unrecorded, [None] * len(unrecorded)), (entries, rows), _without([], others)],
        closings,
        lambda left_out: _memory(0, births, left_out),
    )


# The assertion for tests that nothing leaks.


P = ParamSpec("P")
R = TypeVar("R")

_COROUTINE: Final = 0x80
"""``inspect.CO_COROUTINE``, without its import."""
_ANY_GENERATOR: Final = 0x220
"""``inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR``."""


@overload
def assert_no_leaks(since: LeakDetector | Snapshot, /, *, object_limit: int = OBJECT_LIMIT) -> None: ...
@overload
def assert_no_leaks(*, object_limit: int = OBJECT_LIMIT) -> NoLeaks: ...
def assert_no_leaks(since: object = None, /, *, object_limit: int = OBJECT_LIMIT) -> NoLeaks | None:
    """Raise `LeakError` if a resource is still alive, or was disposed under a live reference.

    ``with assert_no_leaks():`` watches the block, in all threads, and raises at its end; an
    exception that leaves the block passes through unchanged. ``@assert_no_leaks()`` does so for
    each call of a function. ``assert_no_leaks(detector)`` and ``assert_no_leaks(snapshot)`` check
    at once: all that was born under the detector, or that is not in the snapshot. A disposed
    resource that only a left-over variable refers to is no leak.

    Parameters
    ----------
    since : LeakDetector or Snapshot, optional
        Check at once. Without `since` nothing happens until the result is entered; a `LeakWarning`
        says so if it is never entered.
    object_limit : int, default 4_000_000
        How many objects the search for holders reaches at most.

    Raises
    ------
    LeakError
        Something leaked. The message is the report, with a line and a holder for each site.
    TypeError
        `since` is neither a detector nor a snapshot.

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
        return NoLeaks(object_limit)
    if isinstance(since, LeakDetector):
        _check(since.take_snapshot(), object_limit)
    elif isinstance(since, Snapshot):
        _check(take_snapshot().since(since), object_limit)
    else:
        raise TypeError(
            f"assert_no_leaks: since must be a LeakDetector or a Snapshot, not a {type(since).__qualname__}"
        )
    return None


@final
class NoLeaks:
    """The context manager and decorator that `assert_no_leaks` returns."""

    _detector: LeakDetector | None = None
    _used = False

    def __init__(self, object_limit: int) -> None:
        self._object_limit = object_limit

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Decorate a function or coroutine function, so that each of its calls is watched."""
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
                with NoLeaks(self._object_limit):
                    return await cast("Awaitable[object]", function(*args, **kwargs))

            return cast("Callable[P, R]", watched_coroutine)

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with NoLeaks(self._object_limit):
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
                _check(detector.take_snapshot(), self._object_limit)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                "assert_no_leaks() was never entered, so it checked nothing: write `with assert_no_leaks():`, "
                "or assert_no_leaks(detector)",
                LeakWarning,
                stacklevel=2,
            )


def check_nothing_is_left(
    detector: LeakDetector, *, allowed: Callable[[Leak], bool], object_limit: int = OBJECT_LIMIT
) -> None:
    """Raise `LeakError` if something born under a detector leaks and is not allowed to."""
    with collection_paused():
        report = detector.take_snapshot().report(object_limit=object_limit)
        leaks = tuple(leak for leak in report.leaks if not allowed(leak))
        if len(leaks) < len(report.leaks):
            rest = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
            count = sum(leak.count for leak in leaks)
            report = replace(report, leaks=leaks, count=count, nbytes=max(0, report.nbytes - rest))
        _raise_if_leaking(report)


def _check(snapshot: Snapshot, object_limit: int) -> None:
    _raise_if_leaking(snapshot.report(object_limit=object_limit))


def _raise_if_leaking(report: Report) -> None:
    """Raise `LeakError` if a report has leaks; warn if it has something undecided."""
    if report.leaks:
        raise LeakError(str(report), count=report.count, nbytes=report.nbytes)
    if report.undecided:
        text = "; ".join(report.undecided)
        warnings.warn(f"no leak was found, but not everything could be judged: {text}", LeakWarning, stacklevel=4)
