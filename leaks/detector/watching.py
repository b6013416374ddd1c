"""Watching the process while a detector is open: births of every kind, and passes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import wraps
from multiprocessing import queues
from typing import TYPE_CHECKING, Any, Final, cast, final

from ...scopes.base.process import (
    PATCHES,
    TESTED_PYTHON,
    Patch,
    at_forks,
    bytes_text,
    hold_across_forks,
    install_imported,
    load_frameworks,
)
from ...scopes.base.sites import Mark, shown, site_of
from ...scopes.context import add_listener, remove_listener
from ...scopes.framework import FRAMEWORKS
from ...scopes.identity import Entry, name_lines_with
from ..births.lines import Beginning
from ..births.log import DISPOSALS, LOG, Disposal, Row, complete_log
from ..births.open_scopes import OPENINGS
from ..births.record_builder import layout_of
from ..holders.references import hide_types
from ..verdicts.growth import HANDED_OVER, STEP
from .recording import RECORDERS

if TYPE_CHECKING:
    from ...scopes.compiled import ScopeState
    from ...scopes.scope import DisposeScope

__all__ = [
    "Window",
    "counts",
    "count_handovers",
    "is_watching",
    "look_at_passes",
    "mark",
    "recall",
]

# Watching the process: the log is open, and births of every kind are seen, while any detector is.
#
# While none is, nothing is hooked. What is seen outside of all scopes stays unowned.


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
    beginning : Beginning
        What the log had before it.
    after, until : int
        The number of the last birth before it, and of its own last one.
    """

    __slots__ = ("__weakref__", "_closings", "_until", "beginning", "frames", "sample_nbytes")

    def __init__(self, frames: int, sample_nbytes: int | None) -> None:
        self.frames = frames
        self.sample_nbytes = sample_nbytes
        self._until: int | None = None
        self._closings = 0
        self.beginning = Beginning()

    @property
    def after(self) -> int:
        """The number of the last birth before it."""
        return self.beginning.after

    @property
    def until(self) -> int:
        """The number of its last birth."""
        return counts()[0] if self._until is None else self._until

    @property
    def closings(self) -> int:
        """How many scopes had been closed at its end, by the same count as in the births."""
        return counts()[2] if self._until is None else self._closings

    def __contains__(self, row: Row) -> bool:
        return self.after < row.number <= self.until

    def open(self) -> None:
        """Begin: watch the process, where nobody does yet."""
        global _era
        load_frameworks()
        install_imported()
        with _lock:
            try:
                _known.add(weakref.ref(self, _forget_window))
                _open.append(self)
                _adjust()
                self.beginning = Beginning.now(counts()[0])
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
            FRAMEWORKS.stop_watching()
            _leave_threads()
            remove_listener(_LISTENER)
            LOG.close()


hide_types(Window)


def is_watching() -> bool:
    """Return whether any detector is open."""
    return bool(_open)


def counts() -> tuple[int, int, int, int]:
    """Return the counts of the log up to now: births, passes, closings, and known births."""
    return complete_log().counts()


def mark(name: str) -> int:
    """Record the end of a pass of a loop. Returns how many passes of that name there were."""
    count: int = complete_log().mark(name)
    for recorder in RECORDERS:
        recorder.passed(name, count)
    for look in _LOOKS:
        look(name, count)
    return count


_LOOKS: Final[list[Callable[[str, int], object]]] = []


def look_at_passes(look: Callable[[str, int], object]) -> Callable[[], None]:
    """Call a function at the end of each pass, with its name and number. Return what ends that."""
    _LOOKS.append(look)
    return lambda: _LOOKS.remove(look)


def recall(entry: Entry) -> Row | None:
    """Return the row of the log for the birth of a resource; None where there is none."""
    row: Row | None = LOG.recall(entry)
    if row is None:
        disposed = DISPOSALS.get(entry)
        if disposed is not None:
            return disposed[1]
        for framework in FRAMEWORKS.with_own("anchor_of"):
            anchor = framework.anchor_of(entry)
            row = None if anchor is None else LOG.recall_memory(anchor)
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


# ------------------------------------------------------------------ the listener


@final
class _Listener:
    """Records births, disposals and deaths in the log: see `Listener`.

    The log itself sees births and deaths.
    """

    __slots__ = ("born", "died")

    def __init__(self) -> None:
        self.born: Any = LOG.born
        self.died: Any = LOG.died

    def moved(self, entry: Entry, source: ScopeState | None, target: ScopeState | None) -> None:
        """Forget the disposal of a resource that moves: its release has failed."""
        DISPOSALS.pop(entry, None)

    def disposed(self, entry: Entry, owner: ScopeState | None) -> None:
        """Record where a resource is disposed."""
        log = complete_log()
        row = recall(entry)
        if row is not None:
            DISPOSALS[entry] = Disposal(log.place(), log.counts()[2], layout_of(entry)), row
            log.released(entry)
            for framework in FRAMEWORKS.that_watch("disposing"):
                framework.disposing(entry, cast("DisposeScope | None", owner))

    def opened(self, scope: ScopeState) -> None:
        """Pass a scope on to recorders; watch this thread if it is older than the detector."""
        if _here.era != _era:
            _watch_this_thread()
        OPENINGS.add(scope)
        for recorder in RECORDERS:
            recorder.opened(scope)

    def closed(self, scope: ScopeState) -> None:
        """Count the end of a scope, as the end of a pass of the loop around it."""
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

    def stepped(self) -> None:
        """Count a step of an optimizer, as the end of a pass."""
        mark(STEP)

    def line_of_birth(self, entry: Entry) -> str:
        """Return the line where a resource was born; empty where that is not known."""
        row = recall(entry)
        places = () if row is None else LOG.site(row.site).places
        return str(site_of(places[0])) if places else ""

    def story(self, entry: Entry) -> str:
        """Return where a resource was born and disposed, for an error message."""
        if recall(entry) is None:
            return ""
        disposed = DISPOSALS.get(entry)
        released = "" if disposed is None else f", disposed at {site_of(disposed[0].mark)}"
        return f" (born at {self.line_of_birth(entry) or 'an unknown site'}{released})"


_LISTENER: Final = _Listener()


# ------------------------------------------------------------------ threads and processes

_THREADS: Final = Patch(
    library="python",
    name="threading.Thread._bootstrap_inner",
    why="a thread that is started while a detector is open sees births too",
    tested=TESTED_PYTHON,
    guard="it is there",
    otherwise="births on threads that are started while a detector is open are seen only in scopes",
)
PATCHES.declare(_THREADS)


class _Here(threading.local):
    # When this thread was last seen to.
    era = 0


_here: Final = _Here()


def _watch_this_thread() -> None:
    # Not while another thread opens or closes a window: what began after its end would have none.
    # The next scope here asks again.
    if _lock.acquire(blocking=False):
        try:
            if _open:
                _here.era = _era
                FRAMEWORKS.start_watching(LOG)
        finally:
            _lock.release()


def _watch_threads() -> None:
    """Let every thread that is started from now on see births as well."""
    PATCHES.replace(_THREADS, threading.Thread, "_bootstrap_inner", _watching_from_the_start)


def _watching_from_the_start(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @wraps(original)
    def _bootstrap_inner(thread: threading.Thread) -> None:
        if _open:
            # Since 3.14 a thread runs in a context of its own.
            context: Context | None = getattr(thread, "_context", None)
            if context is None:
                _watch_this_thread()
            else:
                # One that is running elsewhere cannot be entered, and the thread says so.
                with suppress(RuntimeError):
                    context.run(_watch_this_thread)
        original(thread)

    return _bootstrap_inner


def _leave_threads() -> None:
    PATCHES.restore(_THREADS)


def _begin_as_child() -> None:
    DISPOSALS.clear()
    for window in _open:
        # Without a look: what was made last is the parent's.
        window.beginning = Beginning(LOG.counts()[0])


# The parent reports what it knew: the log forgets it too.
at_forks(in_child=_begin_as_child)

# What an error for want of memory says of what is live.


def _memory_by_line() -> list[tuple[int, str]]:
    """Return the bytes born at each line that a detector knows, the most bytes first."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    log = complete_log()
    for number in range(log.site_count()):
        site = log.site(number)
        if site.nbytes > 0:
            # A tensor and the array that is its memory, and was there before it, are of one line:
            # reported once.
            line = str(site_of(site.places[0] if site.places else None) or "<unknown>")
            text = f"{bytes_text(site.nbytes)} in {round(site.live):,} {site.kind} on {site.device} at {line}"
            row = site.nbytes, text
            if site.nbytes >= found.get((line, site.device), row)[0]:
                found[line, site.device] = row
    return sorted(found.values(), key=lambda row: (-row[0], row[1]))


name_lines_with(_memory_by_line)

# The passes of a worker process: what it hands over to its parent by a queue of `multiprocessing`
# ends one.
#
# So do the batches of a DataLoader's worker and the results of a pool's.


_HANDOVERS: Final = Patch(
    library="python",
    name="put of multiprocessing.queues.Queue and SimpleQueue",
    why="what a worker process hands over ends one of its passes",
    tested=TESTED_PYTHON,
    guard="it is there",
    otherwise="growth in worker processes is not reported",
)
PATCHES.declare(_HANDOVERS)


def count_handovers() -> None:
    """Count what this process, a worker, puts into queues from now on, while a detector is open."""
    for cls in (queues.Queue, queues.SimpleQueue):
        PATCHES.replace(_HANDOVERS, cls, "put", _counting)


def _counting(put: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(put)
    def counted(queue: Any, *args: Any, **kwargs: Any) -> Any:
        result = put(queue, *args, **kwargs)
        if is_watching():
            mark(HANDED_OVER)
        return result

    return counted
