"""The own memory of a forked worker process, from pass to pass.

A forked process shares all memory with its parent until one of them writes to it: then the page is
copied. Python writes to an object whenever it counts a reference. So a worker that only reads a
large list of Python objects copies it page by page. Anonymous memory (``RssAnon``) does not show
that, because it counts shared pages too. The memory in pages that no other process has shows it:
this is the own memory.

Pages of files that this process alone has read are left out: the system drops them when it is short
of memory.

Reading the own memory takes some milliseconds. It is read at ever fewer passes, chosen by their
number and not by the clock, so that a report does not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, final

from ..births.log import complete_log
from ..report.leaks import Leak
from ..report.timeline import HANDED_OVER
from ..verdicts.without_tensors import OwnMemory, growth_of_own_memory
from .recording import Thinned, anonymous_nbytes, cached_nbytes

__all__ = [
    "OwnPages",
    "own_nbytes",
]

_POINTS_AT_MOST: Final = 64
"""So many points are kept at most."""
_STRIDE: Final = 4
"""The memory is read at every so many passes at first: that takes some milliseconds. It is read at
each of the passes before the first of these too. A loader that shuffles copies most in its first
passes: if these were one step, that would look like one collection of garbage.
"""
_ROLLUP: Final = Path("/proc/self/smaps_rollup")
_UNKNOWN: Final = (
    f"what forked worker processes copy of their parent's memory: this system does not report it ({_ROLLUP})"
)


def own_nbytes() -> int | None:
    """Return the bytes of the own memory of this process; None if that is unknown."""
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
    """Records the own memory of this process. Make it after the fork."""

    def __init__(self) -> None:
        self._first: list[OwnMemory] = []
        self._points: Thinned[OwnMemory] = Thinned(_POINTS_AT_MOST, _STRIDE)
        self._is_unknown = False

    def passed(self, name: str, count: int) -> None:
        """Read the own memory at the end of a pass, if that is one of the chosen passes."""
        if name != HANDED_OVER or self._is_unknown:
            return
        is_chosen = self._points.wants()
        if is_chosen or len(self._first) < _STRIDE - 1:
            own = own_nbytes()
            self._is_unknown = own is None
            if own is not None:
                by_device = complete_log().live_nbytes()
                live = sum(nbytes for device, nbytes in by_device.items() if device.startswith("cpu"))
                point = OwnMemory(count, own, live + cached_nbytes(), anonymous_nbytes() or 0)
                if is_chosen:
                    self._points.append(point)
                else:
                    self._first.append(point)

    def leaks(self) -> tuple[Leak, ...]:
        """Return the growth of the own memory as a leak, or nothing."""
        return growth_of_own_memory([*self._first, *self._points.items()])

    def unwatched(self) -> tuple[str, ...]:
        """Return what is not watched because the system does not report it."""
        return (_UNKNOWN,) if self._is_unknown else ()
