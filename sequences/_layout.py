"""Where each element of a packed batch stands: the arithmetic of batch sizes, without a loop over time steps.

A packed batch holds, time step after time step, the elements of all sequences that reach the step, longest sequence
first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._inputs import Array

__all__ = ["Steps", "batch_sizes_of", "inverse_of", "rows_at", "steps_of"]


class Steps(NamedTuple):
    """For each row of packed data, the time step and the sequence that it belongs to.

    Attributes
    ----------
    starts : ndarray of int64, shape (time,)
        The first row of each step.
    times : ndarray of int64, shape (rows,)
        The step of each row.
    places : ndarray of int64, shape (rows,)
        The sequence of each row, as a position among the sequences sorted by length.
    """

    starts: NDArray[np.int64]
    times: NDArray[np.int64]
    places: NDArray[np.int64]


def batch_sizes_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many sequences reach each time step, given their lengths in descending order."""
    ascending = lengths[::-1]
    # Methods, because NumPy's functions of the same names take a multiple of the time where there is little to do.
    reaching = ascending.searchsorted(np.arange(int(lengths[0])), side="right")
    return lengths.size - reaching.astype(np.int64, copy=False)


def steps_of(batch_sizes: NDArray[np.int64]) -> Steps:
    """The time step and the sequence of each row."""
    starts = batch_sizes.cumsum() - batch_sizes
    times = np.arange(batch_sizes.size).repeat(batch_sizes)
    return Steps(starts, times, np.arange(times.size) - starts.repeat(batch_sizes))


def rows_at(array: Array, first: NDArray[np.int64], second: NDArray[np.int64]) -> Array:
    """``array[first, second]``, a copy; one flat index where the layout allows it, which is several times faster."""
    if array.flags.c_contiguous:
        rows, columns = array.shape[:2]
        taken: Array = array.reshape(rows * columns, *array.shape[2:]).take(first * columns + second, axis=0)
        return taken
    picked: Array = array[first, second]
    return picked


def inverse_of(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    """The inverse of a permutation."""
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(permutation.size)
    return inverse
