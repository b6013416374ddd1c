"""The free lists of the C library: memory that is resident, and that nobody uses."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

__all__ = ["free_nbytes"]


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
