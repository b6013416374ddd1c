"""Record the timeline of a run: its memory, passes and scopes, in bounded size."""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from ...scopes.base.process import at_forks
from ...scopes.framework import FRAMEWORKS
from ..births.log import complete_log
from ..report.report import LOADED_AT_S
from ..report.timeline import AT_MOST, Band, Pass, Sample, Timeline

if TYPE_CHECKING:
    from ...scopes.compiled import ScopeState

__all__ = [
    "RECORDERS",
    "RunRecorder",
    "Thinned",
    "Ticker",
    "anonymous_nbytes",
    "cached_nbytes",
]

T = TypeVar("T")

RECORDERS: Final[list[RunRecorder]] = []
"""The recorders that are recording."""


@final
class Thinned(Generic[T]):
    """A list of bounded length.

    When it is full, every second item is dropped, and from then on only every second new item is
    kept.

    Parameters
    ----------
    at_most : int
        The length.
    stride : int
        At first one item in so many is kept.
    """

    __slots__ = ("_asked", "_at_most", "_items", "_stride")

    def __init__(self, at_most: int = AT_MOST, stride: int = 1) -> None:
        self._at_most = at_most
        self._items: list[T] = []
        # How often `wants` was called.
        self._asked = 0
        self._stride = stride

    def wants(self) -> bool:
        """Return whether to keep the next item. Call it once for each item."""
        self._asked += 1
        return self._asked % self._stride == 0

    def append(self, item: T) -> None:
        """Append an item."""
        self._items.append(item)
        if len(self._items) > self._at_most:
            self._stride *= 2
            del self._items[::2]

    def items(self) -> list[T]:
        """Return the items that were kept, in order."""
        return self._items.copy()


_PASSES_PER_SAMPLE: Final = 16
"""After a sample at pass n, the next is after n divided by this, plus one, further passes."""


@final
class RunRecorder:
    """Records a run from `start` to `stop`.

    It samples memory at an interval on a thread of its own, and at the ends of passes: of each pass
    in the beginning, and then of ever fewer. So the samples of a short run do not depend on how
    fast the machine is. Passes are recorded when they end, scopes when they begin and end.

    Parameters
    ----------
    interval_s : float
        The pause between two samples, in seconds. It becomes longer where sampling takes long: see
        `Ticker`.
    """

    def __init__(self, interval_s: float) -> None:
        self._ticker = Ticker(self.sample, interval_s)
        # A finalizer, or a handler of a signal, may open a scope while this thread has the lock.
        self._lock = threading.RLock()
        self._samples: Thinned[Sample] = Thinned()
        self._passes: Thinned[Pass] = Thinned()
        self._bands: Thinned[Band] = Thinned()
        # For each name, the number of the pass that is sampled next.
        self._due: dict[str, int] = {}
        # The bands of open scopes, by the ``id`` of the scope.
        self._open: dict[int, Band] = {}

    def go_on_as_child(self) -> None:
        """Go on in a forked process: a thread of its parent may have had the lock."""
        self._lock = threading.RLock()

    def start(self) -> None:
        """Begin to record, with a sample."""
        RECORDERS.append(self)
        self.sample()
        self._ticker.start()

    def stop(self) -> None:
        """Stop recording, with a last sample."""
        self._ticker.stop()
        self.sample()
        for index, recorder in enumerate(RECORDERS):
            if recorder is self:
                del RECORDERS[index]
                break

    def sample(self) -> None:
        """Record the memory of this moment."""
        sample = Sample(
            _now_s(),
            _resident_nbytes(),
            complete_log().live_nbytes(),
            cached_nbytes(),
            anonymous_nbytes=anonymous_nbytes(),
        )
        with self._lock:
            if self._samples.wants():
                self._samples.append(sample)

    def passed(self, name: str, index: int) -> None:
        """Record the end of a pass."""
        if index >= self._due.get(name, 1):
            self._due[name] = index + 1 + index // _PASSES_PER_SAMPLE
            self.sample()
        with self._lock:
            if self._passes.wants():
                self._passes.append(Pass(_now_s(), index, name))

    def opened(self, scope: ScopeState) -> None:
        """Record that a scope was entered."""
        depth = 0
        outer = scope.outer
        while outer is not None:
            depth += 1
            outer = outer.outer
        with self._lock:
            if self._bands.wants():
                name = threading.current_thread().name
                self._open[id(scope)] = Band(scope.name or "", _now_s(), None, depth, name)

    def closed(self, scope: ScopeState) -> None:
        """Record that a scope was closed."""
        with self._lock:
            band = self._open.pop(id(scope), None)
            if band is not None:
                self._bands.append(Band(band.name, band.from_s, _now_s(), band.depth, band.thread))

    def timeline(self) -> Timeline:
        """Return the timeline until now; it ends with a new sample if recording goes on."""
        if any(recorder is self for recorder in RECORDERS):
            self.sample()
        with self._lock:
            bands = [*self._bands.items(), *self._open.values()]
            return Timeline(
                samples=tuple(self._samples.items()),
                passes=tuple(self._passes.items()),
                bands=tuple(sorted(bands, key=lambda band: (band.from_s, band.depth))[-AT_MOST:]),
            )


def _begin_as_child() -> None:
    for recorder in RECORDERS:
        recorder.go_on_as_child()


at_forks(in_child=_begin_as_child)


def _now_s() -> float:
    return time.time() - LOADED_AT_S


def _resident_nbytes() -> int:
    nbytes: int = _process(os.getpid()).memory_info().rss
    return nbytes


_ANONYMOUS: Final = (b"RssAnon:", b"VmSwap:")
"""The rows of anonymous memory in the status of a process: resident, and swapped out."""


def anonymous_nbytes() -> int | None:
    """Return the anonymous memory of this process, with what is swapped out; None if it is unknown.

    Unlike resident memory it does not shrink when the system swaps, nor grow when a file is read.
    """
    if sys.platform == "linux":
        try:
            status = Path("/proc/self/status").read_bytes()
        except OSError:
            return None
        # https://man7.org/linux/man-pages/man5/proc_pid_status.5.html: in kB, since Linux 4.5.
        rows = [line.split() for line in status.splitlines() if line.startswith(_ANONYMOUS)]
        return sum(int(row[1]) * 1024 for row in rows) if len(rows) == len(_ANONYMOUS) else None
    # On Windows: the memory that the process has committed for itself.
    private: int | None = getattr(_process(os.getpid()).memory_info(), "private", None)
    return private


@cache
def _process(pid: int) -> Any:
    # Imported only when something is recorded, because the import is slow.
    import psutil

    return psutil.Process(pid)


# The free lists of the C library: memory that is resident and unused.


class _MallInfo2(ctypes.Structure):
    # Source: https://man7.org/linux/man-pages/man3/mallinfo2.3.html
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _find_mallinfo() -> Any:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        # Another C library, or glibc before 2.33.
        return None
    function.restype = _MallInfo2
    return function


_mallinfo: Final[Any] = _find_mallinfo()


def free_nbytes() -> int:
    """Return the bytes in the free lists of the C library; 0 if they are unknown."""
    return 0 if _mallinfo is None else int(_mallinfo().fordblks)


def cached_nbytes() -> int:
    """Return the bytes that allocators of frameworks and of the C library keep for later use."""
    return sum(framework.cached_nbytes() for framework in FRAMEWORKS.with_own("cached_nbytes")) + free_nbytes()


# Calls at an interval, beside a running program.


_PAUSE_TIMES: Final = 50
"""A pause is at least so many times as long as the call before it."""


@final
class Ticker:
    """Calls a function repeatedly, on a thread of its own, until it is stopped.

    The thread ends before the process forks, and a new one goes on in the parent afterwards: Python
    warns of forks of a process with several threads. In the child nothing is called. Pauses become
    longer if the function takes long, so that it takes two per cent of the time at most.

    Parameters
    ----------
    function : callable
        The function. An exception ends the calls, and is kept in `failure`.
    interval_s : float
        The shortest pause between two calls, in seconds.
    woken : callable, optional
        What is called besides, after somebody has released the lock `signal`.
    woken_after_s : float, default 0.0
        How long after that it is called, in seconds.
    """

    __slots__ = (
        "_function",
        "_ident",
        "_interval_s",
        "_is_over",
        "_join",
        "_pid",
        "_woken",
        "_woken_after_s",
        "failure",
        "signal",
    )

    failure: BaseException | None
    signal: threading.Lock

    def __init__(
        self,
        function: Callable[[], object],
        interval_s: float,
        *,
        woken: Callable[[], object] | None = None,
        woken_after_s: float = 0.0,
    ) -> None:
        self._function = function
        self._interval_s = interval_s
        self._woken = woken
        self._woken_after_s = woken_after_s
        self._is_over = False
        # The thread waits for it, and whoever wakes the thread releases it.
        self.signal = threading.Lock()
        self.signal.acquire()
        # What waits for the end of the thread, and the thread's number.
        self._join: Callable[[], object] | None = None
        self._ident = 0
        self._pid = 0
        self.failure = None

    def start(self) -> None:
        """Begin, with the first call after one pause."""
        self._pid = os.getpid()
        self._go_on()
        _TICKERS.append(self)

    def stop(self) -> None:
        """Stop the calls. When this returns, no call is running and none will start. Idempotent."""
        if self in _TICKERS:
            _TICKERS.remove(self)
        self._pause()

    def _go_on(self) -> None:
        self._is_over = False
        if self._woken is not None:
            # It may have been woken while it was stopped.
            self._wake()
        self._join, self._ident = _start_unlisted(self._run)

    def _pause(self) -> None:
        join, self._join = self._join, None
        self._is_over = True
        if join is not None:
            self._wake()
            if self._ident != threading.get_ident():
                join()

    def _wake(self) -> None:
        # It has been woken already where the lock is free.
        with suppress(RuntimeError):
            self.signal.release()

    def _run(self) -> None:
        pause = self._interval_s
        while True:
            began = time.perf_counter()
            is_woken = self.signal.acquire(timeout=pause)
            if self._is_over:
                return
            try:
                if is_woken and self._woken is not None:
                    # Whoever stops the thread does not wait for this.
                    while self.signal.acquire(timeout=self._woken_after_s):
                        if self._is_over:
                            return
                    self._woken()
                    pause = max(0.0, pause - (time.perf_counter() - began))
                    continue
                began = time.perf_counter()
                self._function()
            except BaseException as error:
                self.failure = error
                return
            pause = max(self._interval_s, _PAUSE_TIMES * (time.perf_counter() - began))


def _start_unlisted(function: Callable[[], None]) -> tuple[Callable[[], object], int]:
    """Start a thread that `threading` does not list; return what waits for its end, and its number.

    A program may wait until `threading.active_count` is what it was without this package.
    """
    ends: list[_thread.LockType] = []
    begun = _thread.allocate_lock()
    begun.acquire()

    def run() -> None:
        if sys.version_info < (3, 13):
            # Python releases this lock when the state of the thread is gone.
            ends.append(vars(_thread)["_set_sentinel"]())
            ends[0].acquire()
        begun.release()
        function()

    if sys.version_info >= (3, 13):
        handle = _thread.start_joinable_thread(run, daemon=True)
        begun.acquire()
        return handle.join, handle.ident
    ident = _thread.start_new_thread(run, ())
    begun.acquire()
    return ends[0].acquire, ident


_TICKERS: Final[list[Ticker]] = []
"""The tickers that are not stopped."""


def _before_fork() -> None:
    for ticker in _TICKERS:
        ticker._pause()


def _after_fork_in_parent() -> None:
    for ticker in _TICKERS:
        ticker._go_on()


at_forks(before=_before_fork, in_parent=_after_fork_in_parent, in_child=_TICKERS.clear)
