"""Memory that is kept for reuse, returned on request."""

from __future__ import annotations

import sys
from typing import Any

from ..scopes._pages import trim
from ._arena_arrival import ARENA

__all__ = ["empty_cache"]


def empty_cache() -> None:
    """Return memory that is kept for reuse: the arena's, free pages of the C heap, PyTorch's cached CUDA blocks.

    What is in use stays. The C heap is trimmed where the C library is GNU's; the CUDA cache is emptied where the
    program uses CUDA.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.empty_cache()
    """
    if ARENA is not None:
        ARENA.empty_cache()
    trim()
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()
