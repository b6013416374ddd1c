"""The memory that a forked worker process has for itself, from pass to pass.

A forked process shares all memory with its parent until one of them writes to it: then the page is
copied. Python writes to an object whenever it counts a reference, so that a worker which only reads
a large list of Python objects copies it page by page. Anonymous memory (``RssAnon``) counts shared
pages as well and does not grow by that. The number of pages that no other process has does.

Pages of files that this process alone has read are left out: the system drops them when it is short
of memory.

Reading them takes some milliseconds. It is done at ever fewer passes, chosen by their number and
not by the clock, so that what is found never depends on how busy the machine is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, final

from ..births.log import complete_log
from ..report.leaks import Leak
from ..verdicts.growth import HANDED_OVER
from ..verdicts.without_tensors import OwnMemory, growth_of_own_memory
from .recording import Thinned, anonymous_nbytes, cached_nbytes

__all__ = [
    "OwnPages",
    "own_nbytes",
]

_POINTS: Final = 64
_STRIDE: Final = 4
_ROLLUP: Final = Path("/proc/self/smaps_rollup")
_UNKNOWN: Final = (
    f"what forked worker processes copy of their parent's memory: this system does not report it ({_ROLLUP})"
)


def own_nbytes() -> int | None:
    """Return the bytes that this process has written and shares with no other; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        text = _ROLLUP.read_bytes()
    except OSError:
        return None
    # https://docs.kernel.org/filesystems/proc.html: in kB, since Linux 4.14.
    rows = [line.split() for line in text.splitlines() if line.startswith(b"Private_Dirty:")]
    return int(rows[0][1]) * 1024 if rows else None


@final
class OwnPages:
    """The memory that this process has for itself. Made after the fork."""

    def __init__(self) -> None:
        self._first: list[OwnMemory] = []
        self._points: Thinned[OwnMemory] = Thinned(_POINTS, _STRIDE)
        self._is_unknown = False

    def passed(self, name: str, count: int) -> None:
        """Read the memory at the end of a pass, if it is one of the chosen."""
        if name != HANDED_OVER or self._is_unknown:
            return
        is_chosen = self._points.wants()
        if is_chosen or not self._first:
            own = own_nbytes()
            self._is_unknown = own is None
            if own is not None:
                by_device = complete_log().live_nbytes()
                live = sum(nbytes for device, nbytes in by_device.items() if device.startswith("cpu"))
                point = OwnMemory(count, own, live + cached_nbytes(), anonymous_nbytes() or 0)
                if is_chosen:
                    self._points.append(point)
                else:
                    # Most is copied at the first passes.
                    self._first.append(point)

    def leaks(self) -> tuple[Leak, ...]:
        """Return its growth, if it grows steadily."""
        return growth_of_own_memory([*self._first, *self._points.items()])

    def unwatched(self) -> tuple[str, ...]:
        """Return what is not seen because the system does not report it."""
        return (_UNKNOWN,) if self._is_unknown else ()
