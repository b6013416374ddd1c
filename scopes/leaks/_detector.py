"""The detector: a window on the log of births, and what it tells of it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self, final

from .._entry import DEAD, LIVE, Entry
from .._estates import ESTATES, UNSEEN, catch_up
from ._collection import collection_paused
from ._edges import HIDDEN_TYPES
from ._log import DISPOSALS, LOG, Row
from ._native import native_growth
from ._recording import Recorder
from ._report import Report
from ._rows import NUMBER, RowList, Rows
from ._sightings import Seen
from ._snapshot import Snapshot, survey
from ._timeline import Timeline
from ._totals import with_totals
from ._watching import WATCHERS, Window, mark, recall

if TYPE_CHECKING:
    from collections.abc import Container, Hashable
    from types import TracebackType

__all__ = ["LeakDetector", "live_tensors", "take_snapshot"]


@final
class LeakDetector:
    """Watches births and disposals while it is open, and tells afterwards what is still there, from which line and why.

    ``with LeakDetector() as detector:`` watches the block, in all threads. While any detector is open, the message of a
    `DisposedError` tells where the resource was born and where it was disposed. Several may be open at once, each with
    a memory of its own; one that is entered again while it is open goes on until it has been left as often, and one
    that is entered again later starts anew. What was born before is not watched.

    It keeps nothing alive: it refers to resources weakly and keeps of the program's code only code objects.

    Parameters
    ----------
    frames : int, default 1
        How many lines are kept of each birth: the line of user code, and those that led to it.
    sample_nbytes : int, optional
        Keep one birth for so many bytes on average, chosen at random, instead of all: counts and bytes are estimates
        then, which are right on average, and the program is hardly slowed down.
    timeline_s : float, optional
        Record resident memory, live bytes, passes and scopes, with one sample in so many seconds. Left out, no thread
        is started.

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
        self._recorder: Recorder | None = None
        self._timeline_s = timeline_s
        self._depth = 0
        self._frames = frames
        self._sample_nbytes = sample_nbytes
        self._window: Window | None = None

    def __enter__(self) -> Self:
        with self._lock:
            if self._depth == 0:
                window = Window(self._frames, self._sample_nbytes)
                recorder = None if self._timeline_s is None else Recorder(self._timeline_s)
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

    def take_snapshot(self) -> Snapshot:
        """What was born under this detector and is there now: alive, or disposed under a live reference."""
        if ESTATES or UNSEEN:
            catch_up()
        window = self._window
        if window is None:
            return survey([], 0)
        with collection_paused():
            return survey(_births_in(window), window.closings, lambda but: _memory_in(window, but), window.after, True)

    def memory(self) -> tuple[Seen, ...]:
        """The memory that was born under this detector and is there now, whatever refers to it."""
        return () if self._window is None else tuple(seen for pieces, _ in _memory_in(self._window) for seen in pieces)

    def report(self, *, time_limit_s: float = 5.0, object_limit: int = 2_000_000, of_program: bool = False) -> Report:
        """What `take_snapshot` finds now, by site and reason, with holders: see `Snapshot.report`."""
        with collection_paused():
            report = self.take_snapshot().report(
                time_limit_s=time_limit_s, object_limit=object_limit, of_program=of_program
            )
        timeline = self.timeline()
        native = native_growth(timeline)
        return replace(
            report,
            settings=replace(report.settings, frames=self._frames, sample_nbytes=self._sample_nbytes),
            count=report.count + len(native),
            leaks=(*report.leaks, *native),
            sites=with_totals(report.sites),
            timeline=timeline,
        )

    def timeline(self) -> Timeline:
        """The course of the run under this detector; empty where `timeline_s` was left out."""
        return Timeline() if self._recorder is None else self._recorder.timeline()

    def mark(self, name: str = "mark") -> int:
        """A pass of a loop is over: what is live now is put down for each line.

        What grows from pass to pass is told from what is merely there. The end of a scope is a pass as well, by the
        name of the scope (or its line, where it has none).

        Parameters
        ----------
        name : str, default "mark"
            Passes of different loops have different names.

        Returns
        -------
        int
            How many passes by that name there have been.

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
        known = 0 if window is None else len(LOG.entries(window.after, window.until)[0])
        return f"<LeakDetector {'open' if self._depth else 'closed'}, knows {known} births>"


HIDDEN_TYPES.add(LeakDetector)


def take_snapshot() -> Snapshot:
    """All resources of this process that are there now: alive, or disposed while something still references them.

    Site, age and generation are known of what was born while a `LeakDetector` was open that still is.

    Examples
    --------
    >>> import disposescope as ds
    >>> before = ds.take_snapshot()
    >>> kept = ds.ones(3)
    >>> [str(record) for record in ds.take_snapshot().compare_to(before).new]
    ['Tensor float64 (3,)']
    """
    if ESTATES or UNSEEN:
        catch_up()
    with collection_paused():
        return _survey_process()


def live_tensors() -> Snapshot:
    """All resources of this process that are alive now, the largest first. ``str()`` of it is a table.

    Examples
    --------
    >>> import disposescope as ds
    >>> weights = ds.zeros((500, 100))
    >>> max(record.nbytes for record in ds.live_tensors()) >= 400_000
    True
    """
    return take_snapshot().alive().largest_first()


def _births_in(window: Window) -> list[tuple[list[Entry], Rows]]:
    """The resources that were born in a window, in the order of birth."""
    entries, rows = LOG.entries(window.after, window.until)
    # Those that only their memory is known of, and those that were disposed.
    others: dict[Entry, Row] = {}
    kinds = {id(watcher.kind) for watcher in WATCHERS if watcher.kind is not None}
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


def _without(entries: list[Entry], others: dict[Entry, Row]) -> tuple[list[Entry], Rows]:
    """Some entries and their rows, in the order of birth, without those that are told of already."""
    for entry in entries if others else ():
        others.pop(entry, None)
    found = sorted(others.items(), key=_by_birth)
    return [entry for entry, _ in found], RowList(row for _, row in found)


def _by_birth(item: tuple[Entry, Row]) -> int:
    return item[1][NUMBER]


def _memory_in(window: Window, but: Container[Hashable] = ()) -> list[tuple[list[Seen], Rows]]:
    return _memory(window.after, window.until, but)


def _memory(after: int, until: int, but: Container[Hashable]) -> list[tuple[list[Seen], Rows]]:
    return [watcher.seen(after, until, but) for watcher in WATCHERS]


def _survey_process() -> Snapshot:
    births, _, closings, _ = LOG.counts()
    entries, rows = LOG.entries(0, births)
    known = set(entries)
    strangers: list[Entry] = []
    others: dict[Entry, Row] = {}
    for entry in [*list(LIVE.values()), *list(DEAD.values())]:
        if entry not in known:
            row = recall(entry)
            if row is None:
                strangers.append(entry)
            else:
                others[entry] = row
    return survey(
        [(strangers, RowList([None] * len(strangers))), (entries, rows), _without([], others)],
        closings,
        lambda but: _memory(0, births, but),
    )
