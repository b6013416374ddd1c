"""The statistics of the arena over all scopes, and the return of its unused memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, final

from ...scopes.base.process import trim
from ..arena.extension import ARENA
from .alignment import copies_made

__all__ = [
    "ArenaStatistics",
    "arena_statistics",
    "empty_cache",
]


@final
@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """The memory that the arena has in use and cached now, and counts since the process began.

    Attributes
    ----------
    available : bool
        Always True: the package does not import without its arena.
    blocks, live_nbytes : int
        Blocks in use, and the bytes that were asked for in them.
    peak_nbytes : int
        The most bytes in use at once.
    cached_nbytes : int
        Bytes that are free and kept for reuse; see `empty_cache`.
    mapped_nbytes : int
        The address space of memory in use or cached. The system provides only pages that were
        touched.
    hits, misses : int
        Blocks that were served without asking the system for memory, and with.
    escapes : int
        Blocks that were in use when their scope was closed and had not been moved out of it.
    alignment_copies : int
        Copies that were made because memory from elsewhere was not aligned.
    """

    available: bool = True
    blocks: int = 0
    live_nbytes: int = 0
    peak_nbytes: int = 0
    cached_nbytes: int = 0
    mapped_nbytes: int = 0
    hits: int = 0
    misses: int = 0
    escapes: int = 0
    alignment_copies: int = 0


def arena_statistics() -> ArenaStatistics:
    """Return what the arena has served, over all scopes and threads.

    Examples
    --------
    >>> import disposescope as ds, numpy as np
    >>> with ds.dispose_scope() as scope:
    ...     squares = np.arange(1000.0) ** 2
    ...     inside = ds.arena_statistics()
    >>> inside.live_nbytes >= 8000
    True
    """
    blocks, live, peak, cached, mapped, hits, misses, escapes = ARENA.statistics()
    return ArenaStatistics(True, blocks, live, peak, cached, mapped, hits, misses, escapes, copies_made())


# The return of cached memory.


def empty_cache() -> None:
    """Return cached memory to the system: the arena's, the C heap's, and PyTorch's CUDA blocks.

    What is in use stays. The C heap is trimmed where the C library is GNU's; the CUDA cache is
    emptied where the program uses CUDA.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.empty_cache()
    """
    ARENA.empty_cache()
    trim()
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()
