"""Alignment: arrays whose elements begin at a multiple of 64 bytes, as DLPack consumers want."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arena.extension import ARENA

__all__ = [
    "ALIGNMENT",
    "aligned",
    "alignment_of",
    "copies_made",
    "served",
]

P = ParamSpec("P")
R = TypeVar("R")

ALIGNMENT: Final = 64
"""In bytes: the addresses of aligned arrays are multiples of it."""

_COPIES: Final = count()
_copies_made = 0


def served(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function with the arena serving its arrays, so that they are aligned.

    Also outside of scopes. If a scope is open, it owns what the function makes, as always.
    """
    result: R = ARENA.served(function, *args, **kwargs)
    return result


def alignment_of(array: NDArray[Any]) -> int:
    """Return the largest power of two that divides the address of the first element.

    Examples
    --------
    >>> import numpy as np
    >>> array = np.zeros(100, dtype="u1")
    >>> alignment_of(array[1:]) < alignment_of(array)
    True
    """
    address: int = ARENA.address(array)
    return address & -address


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself if it is aligned or empty, and otherwise a counted, aligned copy."""
    if array.size == 0 or ARENA.address(array) % ALIGNMENT == 0:
        return array
    global _copies_made
    # next() is atomic; += could lose the count of another thread.
    _copies_made = next(_COPIES) + 1
    copied: NDArray[Any] = ARENA.served(np.array, array, order="K", copy=True, subok=True)
    return copied


def copies_made() -> int:
    """Return how many copies were made for alignment since the process began."""
    return _copies_made
