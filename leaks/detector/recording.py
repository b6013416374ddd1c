"""The course of a run as it happens: memory over time, passes and scopes, looked at now and then."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from ...scopes.forks import at_forks
from ..births.log import LOG
from ..report.report import LOADED_AT_S
from ..report.timeline import AT_MOST, Band, Pass, Sample, Timeline

if TYPE_CHECKING:
    from ...scopes.scope import DisposeScope

__all__ = [
    "CACHES",
    "RECORDERS",
    "Recorder",
    "Ticker",
    "free_nbytes",
]

# The course of a run, as it happens: memory over time, passes, scopes. Bounded, however long the
# run is.


T = TypeVar("T")

CACHES: Final[list[Callable[[], int]]] = []
"""What tells the bytes that an allocator keeps for later use."""

RECORDERS: Final[list[Recorder]] = []
"""Those that record now."""


@final
class Thinned(Generic[T]):
    """A list that is never longer than a number: then every second item goes, and of what comes every second too."""

    __slots__ = ("_items", "_met", "_stride")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._met = 0
        self._stride = 1

    def wants(self) -> bool:
        """Whether the item that comes now is to be kept; to be asked once for each."""
        self._met += 1
        return self._met % self._stride == 0

    def append(self, item: T) -> None:
        """Keep an item."""
        self._items.append(item)
        if len(self._items) > AT_MOST:
            self._stride *= 2
            del self._items[::2]

    def items(self) -> list[T]:
        """What was kept, in order."""
        return self._items.copy()


@final
class Recorder:
    """Records from `start` to `stop`: memory at an interval on a thread of its own, and passes and scopes as they come.

    Parameters
    ----------
    interval_s : float
        The pause between two samples, at the beginning.
    """

    def __init__(self, interval_s: float) -> None:
        self._ticker = Ticker(self.sample, interval_s)
        self._lock = threading.Lock()
        self._samples: Thinned[Sample] = Thinned()
        self._passes: Thinned[Pass] = Thinned()
        self._bands: Thinned[Band] = Thinned()
        # By id, which is its own as long as the scope is open: of each, what is known at its
        # beginning.
        self._open: dict[int, Band] = {}

    def start(self) -> None:
        """Begin, with a sample."""
        RECORDERS.append(self)
        self.sample()
        self._ticker.start()

    def stop(self) -> None:
        """End, with a sample."""
        self._ticker.stop()
        self.sample()
        for index, recorder in enumerate(RECORDERS):
            if recorder is self:
                del RECORDERS[index]
                break

    def sample(self) -> None:
        """Put down how much memory there is now."""
        sample = Sample(_now_s(), _resident_nbytes(), LOG.live_nbytes(), sum(tell() for tell in CACHES) + free_nbytes())
        with self._lock:
            if self._samples.wants():
                self._samples.append(sample)

    def passed(self, name: str, index: int) -> None:
        """A pass is over."""
        with self._lock:
            if self._passes.wants():
                self._passes.append(Pass(_now_s(), index, name))

    def opened(self, scope: DisposeScope) -> None:
        """A scope was entered."""
        depth = 0
        outer = scope.outer
        while outer is not None:
            depth += 1
            outer = outer.outer
        with self._lock:
            if self._bands.wants():
                name = threading.current_thread().name
                self._open[id(scope)] = Band(scope.name or "", _now_s(), None, depth, name)

    def closed(self, scope: DisposeScope) -> None:
        """A scope was closed."""
        with self._lock:
            band = self._open.pop(id(scope), None)
            if band is not None:
                self._bands.append(Band(band.name, band.from_s, _now_s(), band.depth, band.thread))

    def timeline(self) -> Timeline:
        """What was recorded until now, with a sample of now while it goes on."""
        if any(recorder is self for recorder in RECORDERS):
            self.sample()
        with self._lock:
            bands = [*self._bands.items(), *self._open.values()]
            return Timeline(
                samples=tuple(self._samples.items()),
                passes=tuple(self._passes.items()),
                bands=tuple(sorted(bands, key=lambda band: (band.from_s, band.depth))[-AT_MOST:]),
            )


def _now_s() -> float:
    return time.time() - LOADED_AT_S


def _resident_nbytes() -> int:
    nbytes: int = _process(os.getpid()).memory_info().rss
    return nbytes


@cache
def _process(pid: int) -> Any:
    # Imported when somebody records: it takes a while.
    import psutil

    return psutil.Process(pid)


# The free lists of the C library: memory that is resident, and that nobody uses.


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
    """The bytes in the free lists of the C library; 0 where it does not tell."""
    return 0 if _mallinfo is None else int(_mallinfo().fordblks)


# Something that is done now and then while a program runs, beside it.


_SHARE: Final = 50
"""What is done takes at most one part in so many of the time."""


@final
class Ticker:
    """Calls a function again and again, on a thread of its own, until it is stopped.

    The thread ends before the process forks and goes on after: Python warns of forks of a process
    with several threads. In the child nothing is called. The pauses become longer where the
    function takes long, so that it costs two per cent of the time at most.

    Parameters
    ----------
    function : callable
        What is called. An exception ends the calls: `failure` holds it.
    interval_s : float
        The shortest pause between two calls.
    """

    __slots__ = ("_function", "_interval_s", "_pid", "_stop", "_thread", "failure")

    failure: BaseException | None

    def __init__(self, function: Callable[[], object], interval_s: float) -> None:
        self._function = function
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self.failure = None

    def start(self) -> None:
        """Begin, the first call after one pause."""
        self._pid = os.getpid()
        self._go_on()
        _RUNNING.append(self)

    def stop(self) -> None:
        """No call is running when this returns, and none will be made. Idempotent."""
        if self in _RUNNING:
            _RUNNING.remove(self)
        self._pause()

    def _go_on(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="leak-report", daemon=True)
        self._thread.start()

    def _pause(self) -> None:
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause = self._interval_s
        while not self._stop.wait(pause):
            began = time.perf_counter()
            try:
                self._function()
            except BaseException as error:
                self.failure = error
                return
            pause = max(self._interval_s, _SHARE * (time.perf_counter() - began))


_RUNNING: Final[list[Ticker]] = []


def _before_fork() -> None:
    for ticker in _RUNNING:
        ticker._pause()


def _after_fork_in_parent() -> None:
    for ticker in _RUNNING:
        ticker._go_on()


at_forks(before=_before_fork, in_parent=_after_fork_in_parent, in_child=_RUNNING.clear)
