"""Pages that are kept instead of being faulted in again: an option of the GNU C library's allocator.

Large blocks (above 32 MiB at the latest) are mapped from the system one by one and unmapped when they are freed, so
that each operation on large CPU tensors touches fresh pages: the kernel clears every page of every result. Told to
use no mappings (``M_MMAP_MAX`` 0) and to give nothing back (``M_TRIM_THRESHOLD`` -1), the allocator serves them from
its heap and reuses them.

The settings belong to the process, not to a thread or a scope. They are made when the first scope that asks is
entered; when the last one is closed, mappings are allowed again and ``malloc_trim`` returns what is free. The
allocator's own adjustment of its mapping threshold ends with the first call of ``mallopt`` (see its manual page); the
threshold is therefore left where that adjustment would end, at 32 MiB.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from typing import Any, Final

__all__ = ["available", "keep_pages", "return_pages", "trim"]

# The parameters of mallopt(3), from <malloc.h>; the last two are glibc's DEFAULT_MMAP_MAX and
# DEFAULT_MMAP_THRESHOLD_MAX.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_MMAP_MAX: Final = -4
_MMAP_MAX: Final = 65536
_MMAP_THRESHOLD_NBYTES: Final = 32 * 1024 * 1024


def _find_glibc() -> Any:
    """The C library of this process, where it is GNU's and has what is needed; else None."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    if not all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")):
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library


_GLIBC: Final = _find_glibc()
_lock = threading.Lock()
_askers: int = 0


def available() -> bool:
    """Whether the C library of this process is one whose pages can be kept."""
    return _GLIBC is not None


def keep_pages() -> None:
    """Keep freed pages in the process, until `return_pages` has been called as often."""
    global _askers
    if _GLIBC is None:
        warnings.warn(
            "keep_pages has no effect here: it is a setting of the GNU C library, and this process has another",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    with _lock:
        _askers += 1
        if _askers > 1:
            return
        _GLIBC.mallopt(_M_MMAP_MAX, 0)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, -1)


def return_pages() -> None:
    """Undo one `keep_pages`; the last one returns what is free to the system."""
    global _askers
    if _GLIBC is None:
        return
    with _lock:
        _askers -= 1
        if _askers:
            return
        _GLIBC.mallopt(_M_MMAP_MAX, _MMAP_MAX)
        _GLIBC.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_NBYTES)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_THRESHOLD_NBYTES)
    trim()


def trim() -> bool:
    """Return the free pages of the C heap to the system, where the C library can. Tells whether any were returned."""
    return _GLIBC is not None and bool(_GLIBC.malloc_trim(0))


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)
