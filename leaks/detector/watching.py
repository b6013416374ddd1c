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
from ...scopes.base.sites import CachedByMark, Mark, line_of, shown, site_of
from ...scopes.context import add_listener, remove_listener
from ...scopes.framework import FRAMEWORKS
from ...scopes.identity import Entry, name_lines_with
from ..births.lines import Beginning
from ..births.log import DISPOSALS, LOG, Disposal, Row, complete_log, innermost_line
from ..births.open_scopes import OPENINGS
from ..births.record_builder import layout_of
from ..holders.references import hide_types
from ..report.timeline import HANDED_OVER, STEP
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

# Watching the process: while any detector is open, the log is open, and births of every kind are
# recorded.
#
# While no detector is open, nothing is hooked. What is born outside every scope stays unowned.


_lock: Final = threading.RLock()
hold_across_forks(_lock, 1)
_open: Final[list[Window]] = []
"""The windows of the detectors that are open."""
_era = 0
"""How often the first detector was opened while no other was open."""


def _pass_name(place: Mark) -> str:
    """Return the name of the passes of a scope without a name, given the place that closes it."""
    return f"{shown(place[0].co_filename)}:{line_of(*place)}"


_PASS_NAMES: Final = CachedByMark(_pass_name)
_known: Final[set[weakref.ref[Any]]] = set()
"""References to all windows. When the last window is gone, the log is cleared."""


@final
class Window:
    """A part of the log: the births while a detector was open.

    Attributes
    ----------
    beginning : Beginning
        The counts of the log when the detector was opened.
    frames, sample_nbytes : int, int or None
        The settings of the detector: see `LeakDetector`.
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
        """The number of the last birth before the window."""
        return self.beginning.after

    @property
    def until(self) -> int:
        """The number of the last birth of the window."""
        return counts()[0] if self._until is None else self._until

    @property
    def closings(self) -> int:
        """How many scopes the log had seen closed at the end of the window."""
        return counts()[2] if self._until is None else self._closings

    def __contains__(self, row: Row) -> bool:
        return self.after < row.number <= self.until

    def open(self) -> None:
        """Begin the window; begin to watch the process if no other window is open."""
        global _era
        load_frameworks()
        install_imported()
        with _lock:
            try:
                _known.add(weakref.ref(self, _forget_window))
                _open.append(self)
                _set_log()
                self.beginning = Beginning.now(counts()[0])
                if len(_open) == 1:
                    _era += 1
                    OPENINGS.clear()
                    add_listener(_LISTENER)
                    _watch_threads()
                    _watch_this_thread()
            except BaseException:
                # After an interrupt here the caller has no window to close.
                self.close()
                raise

    def close(self) -> None:
        """End the window; stop watching the process if no other window is open."""
        with _lock:
            self._until, _, self._closings, _ = counts()
            _open[:] = [window for window in _open if window is not self]
            if _open:
                _set_log()
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
    """Return the counts of the log up to now: see `Log.counts`."""
    return complete_log().counts()


def mark(name: str) -> int:
    """Record the end of a pass of a loop. Return how many passes of that name there were."""
    count: int = complete_log().mark(name)
    for recorder in RECORDERS:
        recorder.passed(name, count)
    for look in _CALLED_AT_PASSES:
        look(name, count)
    return count


_CALLED_AT_PASSES: Final[list[Callable[[str, int], object]]] = []


def look_at_passes(look: Callable[[str, int], object]) -> Callable[[], None]:
    """Call a function at the end of each pass, with its name and number.

    Returns
    -------
    callable
        Ends the calls.
    """
    _CALLED_AT_PASSES.append(look)
    return lambda: _CALLED_AT_PASSES.remove(look)


def recall(entry: Entry) -> Row | None:
    """Return the row of the log for the birth of a resource; None where there is none."""
    row: Row | None = LOG.recall(entry)
    if row is None:
        disposed = DISPOSALS.get(entry)
        if disposed is not None:
            _, birth = disposed
            return birth
        for framework in FRAMEWORKS.with_own("anchor_of"):
            anchor = framework.anchor_of(entry)
            row = None if anchor is None else LOG.recall_memory(anchor)
            if row is not None:
                break
    return row


def _set_log() -> None:
    """Open the log with the most frames, and the finest sampling, that any open window asks for."""
    samples = [window.sample_nbytes or 0 for window in _open]
    LOG.open(max(window.frames for window in _open), min(samples))


def _forget_window(
    reference: weakref.ref[Any],
    known: set[weakref.ref[Any]] = _known,
    disposals: dict[Any, Any] = DISPOSALS,
    pass_names: CachedByMark[str] = _PASS_NAMES,
    clear_log: Callable[[], None] = LOG.clear,
) -> None:
    # The arguments stand for globals, which may be gone when the interpreter shuts down.
    known.discard(reference)
    if not known:
        disposals.clear()
        pass_names.clear()
        clear_log()


# ------------------------------------------------------------------ the listener


@final
class _Listener:
    """Records births, disposals and deaths in the log: see `Listener`.

    Births and deaths go to the log directly.
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
        """Pass a scope on to recorders; begin to watch this thread if that was not done yet."""
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
            name = "" if place is None else _PASS_NAMES(place)
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
        released = ""
        if disposed is not None:
            disposal, _ = disposed
            released = f", disposed at {site_of(disposal.mark)}"
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
    # The value of `_era` when this thread began to be watched.
    era = 0


_here: Final = _Here()


def _watch_this_thread() -> None:
    # Not while another thread opens or closes a window: after the last one is closed nobody would
    # end the watching. The next scope on this thread asks again.
    if _lock.acquire(blocking=False):
        try:
            if _open:
                _here.era = _era
                FRAMEWORKS.start_watching(LOG)
        finally:
            _lock.release()


def _watch_threads() -> None:
    """Watch every thread that is started from now on."""
    PATCHES.replace(_THREADS, threading.Thread, "_bootstrap_inner", _with_watching)


def _with_watching(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @wraps(original)
    def _bootstrap_inner(thread: threading.Thread) -> None:
        if _open:
            # Since Python 3.14 a thread runs in a context of its own.
            context: Context | None = getattr(thread, "_context", None)
            if context is None:
                _watch_this_thread()
            else:
                # A context that runs elsewhere cannot be entered; the thread itself raises then.
                with suppress(RuntimeError):
                    context.run(_watch_this_thread)
        original(thread)

    return _bootstrap_inner


def _leave_threads() -> None:
    PATCHES.restore(_THREADS)


def _begin_as_child() -> None:
    DISPOSALS.clear()
    for window in _open:
        # Ask `LOG` itself: to complete it would record pending births of the parent.
        births, _, _, _ = LOG.counts()
        window.beginning = Beginning(births)


# A forked child reports only its own births and disposals; the log is cleared in it too.
at_forks(in_child=_begin_as_child)

# The lines with live memory, for the error for want of memory.


def _memory_by_line() -> list[tuple[int, str]]:
    """Return the bytes born at each line that a detector knows, the most bytes first."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    log = complete_log()
    for number in range(log.site_count()):
        site = log.site(number)
        if site.nbytes > 0:
            # A tensor and the array that is its memory may be of the same line: the line is
            # reported once, with the larger bytes.
            line = str(innermost_line(site) or "<unknown>")
            text = f"{bytes_text(site.nbytes)} in {round(site.live):,} {site.kind} on {site.device} at {line}"
            row = site.nbytes, text
            if site.nbytes >= found.get((line, site.device), row)[0]:
                found[line, site.device] = row
    return sorted(found.values(), key=lambda row: (-row[0], row[1]))


name_lines_with(_memory_by_line)

# The passes of a worker process: a pass ends when it puts something into a queue of
# `multiprocessing`, such as a worker of a DataLoader a batch, or that of a pool a result.


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
        PATCHES.replace(_HANDOVERS, cls, "put", _with_counting)


def _with_counting(put: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(put)
    def counted(queue: Any, *args: Any, **kwargs: Any) -> Any:
        result = put(queue, *args, **kwargs)
        if is_watching():
            mark(HANDED_OVER)
        return result

    return counted
