"""The order in which PyTorch sorts lengths, ties included.

``pack_padded_sequence(enforce_sorted=False)`` calls ``torch.sort(lengths, descending=True)``, which is not stable and
ends in libstdc++'s ``std::sort`` on the CPU: an introsort (D. R. Musser, "Introspective sorting and selection
algorithms", 1997) that stops at 16 elements and leaves the rest to one insertion sort. Where two sequences are of one
length, the order of a batch depends on it. It is followed here step by step; each partition is vectorised, and the
insertion sort is a stable one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["descending_order"]

_CUTOFF: Final = 16


def descending_order(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices that sort lengths from the longest to the shortest, bit for bit those of ``torch.sort`` on the CPU.

    Parameters
    ----------
    lengths : ndarray of int64, shape (batch,)
        The lengths.

    Returns
    -------
    ndarray of int64, shape (batch,)
        New.

    Examples
    --------
    >>> descending_order(np.array([2, 3, 2, 3]))
    array([1, 3, 0, 2])
    """
    count = lengths.size
    # PyTorch does not sort an expanded tensor, whose elements are all the same one.
    if count <= _CUTOFF or lengths.strides[0] == 0:
        return np.argsort(~lengths, kind="stable")
    # The complement reverses the order of all int64, where a minus would overflow at the smallest.
    keys = ~lengths
    order = np.arange(count)
    pending = [(0, count, 2 * (count.bit_length() - 1))]
    while pending:
        first, last, depth = pending.pop()
        while last - first > _CUTOFF:
            if depth == 0:
                _heap_sort(keys, order, first, last)
                break
            depth -= 1
            cut = _partition(keys, order, first, last)
            pending.append((cut, last, depth))
            last = cut
    return order[np.argsort(keys, kind="stable")]


def _partition(keys: NDArray[np.int64], order: NDArray[np.int64], first: int, last: int) -> int:
    """Partition a range around the median of three, and tell where its second half begins.

    Two cursors walk towards each other, each stopping at what is not on its side yet; what they stop at is swapped.
    Neither meets an element twice, so that the k-th stop of the one is swapped with the k-th stop of the other until
    they cross.
    """
    low, middle, high = keys[first + 1], keys[first + (last - first) // 2], keys[last - 1]
    if low < middle:
        at = first + (last - first) // 2 if middle < high else last - 1 if low < high else first + 1
    elif low < high:
        at = first + 1
    else:
        at = last - 1 if middle < high else first + (last - first) // 2
    _swap(keys, first, at)
    _swap(order, first, at)
    pivot = keys[first]
    rest = keys[first + 1 : last]
    upward = np.flatnonzero(rest >= pivot) + (first + 1)
    downward = np.flatnonzero(rest <= pivot)[::-1] + (first + 1)
    met = min(upward.size, downward.size)
    swaps = int(np.count_nonzero(upward[:met] < downward[:met]))
    ups, downs = upward[:swaps], downward[:swaps]
    for array in (keys, order):
        array[ups], array[downs] = array[downs], array[ups]
    # The upward cursor goes on to its next stop, which may be the last element that was swapped up.
    stops = [int(upward[swaps])] if swaps < upward.size else []
    if swaps:
        stops.append(int(downs[-1]))
    return min(stops)


def _heap_sort(keys: NDArray[np.int64], order: NDArray[np.int64], first: int, last: int) -> None:
    """What introsort falls back to when partitions stay lopsided: element by element, for lengths arranged to be so."""
    heap: list[tuple[Any, Any]] = list(zip(keys[first:last].tolist(), order[first:last].tolist(), strict=True))
    count = len(heap)
    for parent in range((count - 2) // 2, -1, -1):
        _adjust_heap(heap, parent, count, heap[parent])
    for end in range(count - 1, 0, -1):
        value = heap[end]
        heap[end] = heap[0]
        _adjust_heap(heap, 0, end, value)
    keys[first:last] = [key for key, _ in heap]
    order[first:last] = [index for _, index in heap]


def _adjust_heap(heap: list[tuple[Any, Any]], hole: int, count: int, value: tuple[Any, Any]) -> None:
    top = hole
    child = hole
    while child < (count - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if count % 2 == 0 and child == (count - 2) // 2:
        child = 2 * (child + 1)
        heap[hole] = heap[child - 1]
        hole = child - 1
    parent = (hole - 1) // 2
    while hole > top and heap[parent][0] < value[0]:
        heap[hole] = heap[parent]
        hole = parent
        parent = (hole - 1) // 2
    heap[hole] = value


def _swap(array: NDArray[np.int64], one: int, other: int) -> None:
    array[one], array[other] = int(array[other]), int(array[one])
