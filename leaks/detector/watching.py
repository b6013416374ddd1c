"""Watching the process while a detector is open: births of every kind, and passes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from functools import wraps
from multiprocessing import queues
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ...scopes.forks import at_forks, hold_across_forks
from ...scopes.identity import Entry
from ...scopes.kinds import AWAITED, install_imported, load_frameworks
from ...scopes.listeners import add_listener, remove_listener
from ...scopes.out_of_memory import bytes_text, tell_lines_by
from ...scopes.sites import Mark, shown, site_of
from ..births.log import DISPOSALS, LOG, Disposal, Row, Seen
from ..births.open_scopes import OPENINGS
from ..births.record_builder import layout_of
from ..holders.references import HIDDEN_TYPES
from ..verdicts.growth import HANDED_OVER
from .recording import RECORDERS

if TYPE_CHECKING:
    from collections.abc import Container

    from ...scopes.kinds import Kind
    from ...scopes.scope import DisposeScope
    from ..births.log import Rows

__all__ = [
    "RELEASES",
    "WATCHERS",
    "Watcher",
    "Window",
    "add_watcher",
    "counts",
    "count_handovers",
    "is_watching",
    "mark",
    "recall",
]

# Watching the process: the log is open, and births of every kind are seen, while any detector is.
#
# While none is, nothing is hooked. What is seen outside of all scopes stays unowned.


class Watcher(Protocol):
    """What the floor above implements for memory that no resource stands for.

    Attributes
    ----------
    kind : Kind or None
        The kind whose births are put down as those of their memory alone.
    """

    kind: Kind | None

    def begin(self) -> None:
        """See births on this thread from now on."""

    def end(self) -> None:
        """See none any more."""

    def look(self) -> None:
        """Record the births that are seen and not in the log yet."""

    def recall(self, entry: Entry, /) -> Row | None:
        """What the log knows of the memory behind a live resource; None where this watcher has nothing to tell."""
        ...

    def seen(self, after: int, until: int, but: Container[Hashable], /) -> tuple[list[Seen], Rows]:
        """The memory of a window of births that is there now, in the order of birth, without some: see `see`."""
        ...


WATCHERS: Final[list[Watcher]] = []

RELEASES: Final[dict[int, Callable[[Entry, DisposeScope | None], object]]] = {}
"""By ``id`` of a kind, which lives as long as the process: called when a resource that is known is about to be
disposed, with the scope that owned it. What uses its memory from then on has escaped.
"""

_lock: Final = threading.RLock()
hold_across_forks(_lock, 1)
_open: Final[list[Window]] = []
_era = 0
"""How often watching has begun."""
_PASS_NAMES: Final[dict[Mark | None, str]] = {}
_known: Final[set[weakref.ref[Any]]] = set()
"""All windows that somebody can ask: when the last has gone, what is known is forgotten."""


@final
class Window:
    """A part of the log: the births between two moments.

    Attributes
    ----------
    after, until : int
        The number of the last birth before it, and of its own last one.
    """

    __slots__ = ("__weakref__", "_closings", "_until", "after", "frames", "sample_nbytes")

    def __init__(self, frames: int, sample_nbytes: int | None) -> None:
        self.frames = frames
        self.sample_nbytes = sample_nbytes
        self._until: int | None = None
        self._closings = 0
        self.after = 0

    @property
    def until(self) -> int:
        """The number of its last birth."""
        return counts()[0] if self._until is None else self._until

    @property
    def closings(self) -> int:
        """How many scopes had been closed at its end, by the count that the births were made with."""
        return counts()[2] if self._until is None else self._closings

    def __contains__(self, row: Row) -> bool:
        return self.after < row.number <= self.until

    def open(self) -> None:
        """Begin: watch the process, where nobody does yet."""
        global _era
        load_frameworks()
        if AWAITED:
            install_imported()
        with _lock:
            try:
                _known.add(weakref.ref(self, _forget_window))
                _open.append(self)
                _adjust()
                self.after = counts()[0]
                if len(_open) == 1:
                    _era += 1
                    OPENINGS.clear()
                    add_listener(_LISTENER)
                    _watch_threads()
                    _watch_this_thread()
            except BaseException:
                # An interrupt: nobody will close it.
                self.close()
                raise

    def close(self) -> None:
        """End: watch no more, where nobody else does."""
        with _lock:
            self._until, _, self._closings, _ = counts()
            _open[:] = [window for window in _open if window is not self]
            if _open:
                _adjust()
                return
            for watcher in WATCHERS:
                watcher.end()
            _leave_threads()
            remove_listener(_LISTENER)
            LOG.close()


HIDDEN_TYPES.add(Window)


def is_watching() -> bool:
    """Whether any detector is open."""
    return bool(_open)


def counts() -> tuple[int, int, int, int]:
    """The counts of the log, with all that was born until now: births, passes, closings, births that are known."""
    for watcher in WATCHERS:
        watcher.look()
    counted: tuple[int, int, int, int] = LOG.counts()
    return counted


def add_watcher(watcher: Watcher) -> None:
    """Have somebody watch whenever a detector is open, from now on."""
    with _lock:
        WATCHERS.append(watcher)
        if _open:
            watcher.begin()


def mark(name: str) -> int:
    """A pass of a loop is over. Returns how many by that name were."""
    for watcher in WATCHERS:
        watcher.look()
    count: int = LOG.mark(name)
    for recorder in RECORDERS:
        recorder.passed(name, count)
    return count


def recall(entry: Entry) -> Row | None:
    """What the log knows of the birth of a resource."""
    row: Row | None = LOG.recall(entry)
    if row is None:
        disposed = DISPOSALS.get(entry)
        if disposed is not None:
            return disposed[1]
        for watcher in WATCHERS:
            row = watcher.recall(entry)
            if row is not None:
                break
    return row


def _adjust() -> None:
    """Keep as much as the most curious of the detectors wants."""
    samples = [window.sample_nbytes or 0 for window in _open]
    LOG.open(max(window.frames for window in _open), min(samples))


def _forget_window(
    reference: weakref.ref[Any],
    known: set[weakref.ref[Any]] = _known,
    disposals: dict[Any, Any] = DISPOSALS,
    pass_names: dict[Mark | None, str] = _PASS_NAMES,
    clear_log: Callable[[], None] = LOG.clear,
) -> None:
    # Without globals: the last window may go with the interpreter.
    known.discard(reference)
    if not known:
        disposals.clear()
        pass_names.clear()
        clear_log()


# ------------------------------------------------------------------ what the scopes tell


@final
class _Listener:
    """What is told of births, disposals and deaths: see `Listener`.

    Births and deaths are the log's own business.
    """

    __slots__ = ("born", "died")

    def __init__(self) -> None:
        self.born: Any = LOG.born
        self.died: Any = LOG.died

    def moved(self, entry: Entry, source: DisposeScope | None, target: DisposeScope | None) -> None:
        """What moves is alive: a release of it that was under way has failed."""
        DISPOSALS.pop(entry, None)

    def disposed(self, entry: Entry, owner: DisposeScope | None) -> None:
        """Remember where."""
        for watcher in WATCHERS:
            watcher.look()
        row = recall(entry)
        if row is not None:
            DISPOSALS[entry] = Disposal(LOG.place(), LOG.counts()[2], layout_of(entry)), row
            LOG.released(entry)
            release = RELEASES.get(id(entry.kind))
            if release is not None:
                release(entry, owner)

    def opened(self, scope: DisposeScope) -> None:
        """Record it, where somebody does, and watch this thread where it runs longer than anybody watches."""
        if _here.era != _era:
            _watch_this_thread()
        OPENINGS.add(scope)
        for recorder in RECORDERS:
            recorder.opened(scope)

    def closed(self, scope: DisposeScope) -> None:
        """Count it, as a pass of the loop that it is the body of."""
        OPENINGS.remove(scope)
        LOG.closing()
        name = scope.name
        if name is None:
            place = LOG.place()
            name = _PASS_NAMES.get(place)
            if name is None:
                site = site_of(place)
                name = _PASS_NAMES[place] = "" if site is None else f"{shown(site.file)}:{site.line}"
        mark(name)
        for recorder in RECORDERS:
            recorder.closed(scope)

    def story(self, entry: Entry) -> str:
        """Where it was born and disposed, for an error message."""
        row = recall(entry)
        if row is None:
            return ""
        places = LOG.site(row.site)[3]
        disposed = DISPOSALS.get(entry)
        released = "" if disposed is None else f", disposed at {site_of(disposed[0].mark)}"
        return f" (born at {site_of(places[0] if places else None)}{released})"


_LISTENER: Final = _Listener()


# ------------------------------------------------------------------ threads and processes

_bootstrap: Final[list[Any]] = []


class _Here(threading.local):
    # When this thread was last seen to.
    era = 0


_here: Final = _Here()
_thread_class: Final[Any] = threading.Thread


def _watch_this_thread() -> None:
    # Not while another thread opens or closes a window: what began after its end would have none.
    # The next scope here asks again.
    if _lock.acquire(blocking=False):
        try:
            if _open:
                _here.era = _era
                for watcher in WATCHERS:
                    watcher.begin()
        finally:
            _lock.release()


def _watch_threads() -> None:
    """Let every thread that is started from now on see births as well."""
    original = _thread_class._bootstrap_inner

    def _bootstrap_inner(thread: threading.Thread) -> None:
        if _open:
            _watch_this_thread()
        original(thread)

    _bootstrap[:] = [original, _bootstrap_inner]
    _thread_class._bootstrap_inner = _bootstrap_inner


def _leave_threads() -> None:
    if not _bootstrap:
        return
    original, ours = _bootstrap
    if _thread_class._bootstrap_inner is ours:
        _thread_class._bootstrap_inner = original


def _begin_as_child() -> None:
    DISPOSALS.clear()
    for window in _open:
        # Without a look: what was made last is the parent's.
        window.after = LOG.counts()[0]


# What the parent knew is the parent's to tell: the log forgets it too.
at_forks(in_child=_begin_as_child)

# What an error for want of memory says of what is live.


def _memory_by_line() -> list[tuple[int, str]]:
    """What a detector knows, the most bytes first."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for number in range(LOG.site_count()):
        kind, device, _, places, _, live, nbytes, _ = LOG.site(number)
        if nbytes > 0:
            # A tensor and the array that is its memory, and was there before it, are of one line:
            # told once.
            key = str(site_of(places[0] if places else None) or "<unknown>"), device
            row = nbytes, f"{bytes_text(nbytes)} in {round(live):,} {kind} on {device} at {key[0]}"
            if nbytes >= found.get(key, row)[0]:
                found[key] = row
    return sorted(found.values(), key=lambda row: (-row[0], row[1]))


tell_lines_by(_memory_by_line)

# The passes of a worker process: what it hands over to its parent by a queue of `multiprocessing`
# ends one.
#
# So do the batches of a DataLoader's worker and the results of a pool's.


_counted: Final[list[bool]] = []


def count_handovers() -> None:
    """Count what this process, a worker, puts into queues from now on, while a detector is open.

    Once in a process.
    """
    if _counted:
        return
    _counted.append(True)
    for cls in (queues.Queue, queues.SimpleQueue):
        _count(cls)


def _count(cls: Any) -> None:
    put = cls.put

    @wraps(put)
    def counted(queue: Any, *args: Any, **kwargs: Any) -> Any:
        result = put(queue, *args, **kwargs)
        if is_watching():
            mark(HANDED_OVER)
        return result

    cls.put = counted
