"""The course of a run, as it happens: memory over time, passes, scopes. Bounded, however long the run is."""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from ._facts import LOADED_AT_S
from ._free_lists import free_nbytes
from ._log import LOG
from ._ticker import Ticker
from ._timeline import AT_MOST, Band, Pass, Sample, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._scope import DisposeScope

__all__ = ["CACHES", "RECORDERS", "Recorder"]

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
        # By id, which is its own as long as the scope is open: of each, what is known at its beginning.
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
