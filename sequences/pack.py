"""Packing: from a list of sequences, or from a padded batch, to a packed sequence, in PyTorch's order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from ..tensors.numpy.alignment import served
from .inputs import Array, array_of, arrays_of, batch_sizes_of, inverse_of, lengths_of, rows_at, steps_of
from .packed import PackedSequence
from .torch_inputs import is_torch, listed, torch_functions

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence

    from .inputs import TensorLike

__all__ = [
    "check_flag",
    "descending_order",
    "fitted",
    "pack_arrays",
    "pack_padded_sequence",
    "pack_sequence",
]

# The order in which PyTorch sorts lengths, ties included.
#
# ``pack_padded_sequence(enforce_sorted=False)`` calls ``torch.sort(lengths, descending=True)``,
# which is not stable and ends in libstdc++'s ``std::sort`` on the CPU: an introsort (D. R. Musser,
# "Introspective sorting and selection algorithms", 1997) that stops at 16 elements and leaves the
# rest to one insertion sort. Where two sequences are of one length, the order of a batch depends on
# it. It is followed here step by step; each partition is vectorised, and the insertion sort is a
# stable one.


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


# Packing: from a list of sequences, or from a padded batch, to a packed sequence.


@overload
def pack_sequence(sequences: Iterable[TensorLike], enforce_sorted: bool = True) -> PackedSequence: ...
@overload
def pack_sequence(sequences: Iterable[torch.Tensor], enforce_sorted: bool = True) -> TorchPackedSequence: ...
def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence | TorchPackedSequence:
    """A packed sequence of a list of sequences of different lengths.

    As ``torch.nn.utils.rnn.pack_sequence``, without padding in between. Given PyTorch's tensors, PyTorch's packed
    sequence, with gradients.

    Parameters
    ----------
    sequences : list of Tensor or array, each of shape (length, *)
        At least one, none of them empty. The dtype of the first is that of the result.
    enforce_sorted : bool, default True
        Refuse sequences that are not sorted by length, longest first. With False they are sorted, and the result has
        indices.

    Returns
    -------
    PackedSequence
        New, born in the current scope: it shares no memory with the sequences.

    Raises
    ------
    RuntimeError
        No sequence was given, one is empty or does not fit the first, or they are not sorted.
    IndexError
        A sequence has no dimensions.
    TypeError
        A sequence is neither a Tensor nor an array.
    DisposedError
        A Tensor has been disposed.

    Examples
    --------
    >>> import disposescope as ds
    >>> import numpy as np
    >>> packed = ds.pack_sequence([np.array([1, 2]), np.array([3, 4, 5])], enforce_sorted=False)
    >>> packed.data.tolist(), packed.batch_sizes.tolist(), packed.sorted_indices.tolist()
    ([3, 1, 4, 2, 5], [2, 2, 1], [1, 0])
    """
    sequences, tensors = listed(sequences, "pack_sequence")
    if tensors is not None:
        return torch_functions().pack_sequence(tensors, enforce_sorted)
    arrays = arrays_of(sequences, "pack_sequence", TypeError)
    if not arrays:
        raise RuntimeError("pack_sequence: received an empty list of sequences")
    return PackedSequence._of(served(pack_arrays, arrays, enforce_sorted, "pack_sequence"))


@overload
def pack_padded_sequence(
    input: TensorLike,
    lengths: TensorLike | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence: ...
@overload
def pack_padded_sequence(
    input: torch.Tensor,
    lengths: torch.Tensor | TensorLike | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> TorchPackedSequence: ...
def pack_padded_sequence(
    input: Any,
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence | TorchPackedSequence:
    """A packed sequence of a padded batch.

    As ``torch.nn.utils.rnn.pack_padded_sequence``. Given PyTorch's tensor, PyTorch's packed sequence, with gradients.

    Parameters
    ----------
    input : Tensor or array, shape (time, batch, *) or, with `batch_first`, (batch, time, *)
        The padded batch, not empty.
    lengths : list, array or Tensor, shape (batch,)
        The length of each sequence, at least 1. Elements beyond a length are left out.
    batch_first : bool, default False
        The layout of `input`.
    enforce_sorted : bool, default True
        Refuse sequences that are not sorted by length, longest first. With False they are sorted, and the result has
        indices.

    Returns
    -------
    PackedSequence
        New, born in the current scope: it shares no memory with `input`.

    Raises
    ------
    RuntimeError
        `input` is empty, or `lengths` are not one for each sequence, not positive, or not sorted.
    IndexError
        `input` has fewer than two dimensions.
    TypeError
        `input` is neither a Tensor nor an array, or `batch_first` is no bool.
    DisposedError
        A Tensor has been disposed.

    Examples
    --------
    >>> import disposescope as ds
    >>> import numpy as np
    >>> padded = np.array([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
    >>> packed = ds.pack_padded_sequence(padded, [2, 1, 3], batch_first=True, enforce_sorted=False)
    >>> packed.data.tolist(), packed.batch_sizes.tolist(), packed.unsorted_indices.tolist()
    ([4, 1, 3, 5, 2, 6], [3, 2, 1], [1, 2, 0])
    """
    if is_torch(input):
        return torch_functions().pack_padded_sequence(input, lengths, batch_first, enforce_sorted)
    what = "pack_padded_sequence"
    array = array_of(input, f"{what}: input")
    counts = lengths_of(lengths, what)
    check_flag(batch_first, what)
    if array.ndim < 2:
        raise IndexError(
            f"{what}: input must have at least two dimensions, time and batch, but has shape {array.shape}"
        )
    batch_axis = 0 if batch_first else 1
    batch = array.shape[batch_axis]
    order: NDArray[np.int64] | None = None
    if not enforce_sorted:
        if counts.ndim > 1:
            raise IndexError(f"{what}: lengths must have one dimension, not shape {counts.shape}")
        if counts.ndim:
            if counts.size > batch:
                raise RuntimeError(f"{what}: got {counts.size} lengths for {batch} sequences")
            order = served(descending_order, counts)
            counts = counts[order]
            # PyTorch selects by the order, so that with fewer lengths than sequences the rest is left out.
            batch = counts.size
    if counts.ndim != 1:
        raise RuntimeError(f"{what}: lengths must have one dimension, not shape {counts.shape}")
    if array.size == 0 or batch == 0:
        raise RuntimeError(f"{what}: cannot pack an empty input, of shape {array.shape}")
    if counts.size != batch:
        raise RuntimeError(f"{what}: expected as many lengths as sequences, but got {counts.size} (batch size {batch})")
    _check_lengths(counts, what)
    batch_sizes = served(batch_sizes_of, counts)
    # A length beyond the input adds a step to batch_sizes and no rows, as it does in PyTorch.
    _, times, places = steps_of(batch_sizes[: array.shape[1 - batch_axis]])
    if order is not None:
        places = order[places]
    data = served(rows_at, array, places, times) if batch_first else served(rows_at, array, times, places)
    inverse = None if order is None else served(inverse_of, order)
    return PackedSequence._of((data, batch_sizes, order, inverse))


def pack_arrays(
    arrays: list[Array], enforce_sorted: bool, what: str, dtype: np.dtype[Any] | None = None
) -> tuple[Array, Array, Array | None, Array | None]:
    """The four fields of the packed sequence of at least one array; `dtype` is that of the first where left out."""
    for index, array in enumerate(arrays):
        if array.ndim == 0:
            raise IndexError(f"{what}: sequence {index} has no dimensions, where a sequence has a length")
    first = arrays[0]
    trailing = first.shape[1:]
    parts = [fitted(array, trailing, index, what) for index, array in enumerate(arrays)]
    counts = np.array([array.shape[0] for array in arrays], dtype=np.int64)
    if 0 in trailing or not counts.any():
        raise RuntimeError(f"{what}: cannot pack empty sequences, of shape {first.shape}")
    order: NDArray[np.int64] | None = None
    offsets = np.cumsum(counts) - counts
    if not enforce_sorted:
        order = descending_order(counts)
        counts, offsets = counts[order], offsets[order]
    _check_lengths(counts, what)
    batch_sizes = batch_sizes_of(counts)
    _, times, places = steps_of(batch_sizes)
    # Unsafe, because PyTorch copies each sequence into the dtype of the first.
    joined = np.concatenate(parts, dtype=first.dtype if dtype is None else dtype, casting="unsafe")
    data = joined.take(offsets[places] + times, axis=0)
    return data, batch_sizes, order, None if order is None else inverse_of(order)


def fitted(array: Array, trailing: tuple[int, ...], index: int, what: str) -> Array:
    """A sequence with the trailing shape of the first, broadcast where that is possible.

    Raises
    ------
    RuntimeError
        It is not.
    IndexError
        It has no dimensions.
    """
    if array.shape[1:] == trailing and array.ndim:
        return array
    if array.ndim == 0:
        raise IndexError(f"{what}: sequence {index} has no dimensions, where a sequence has a length")
    try:
        return np.broadcast_to(array, (array.shape[0], *trailing))
    except ValueError:
        raise RuntimeError(
            f"{what}: sequence {index} has shape {array.shape}, "
            f"which does not fit the trailing shape {trailing} of sequence 0"
        ) from None


def check_flag(flag: object, what: str, name: str = "batch_first") -> None:
    """Raise `TypeError` where a flag is not a bool; a number or a list in its place is an argument out of order."""
    if not isinstance(flag, bool):
        raise TypeError(f"{what}: {name} must be a bool, not {flag!r}")


def _check_lengths(counts: NDArray[np.int64], what: str) -> None:
    if (counts[1:] > counts[:-1]).any():
        raise RuntimeError(
            f"{what}: the sequences must be sorted by length, longest first, when enforce_sorted is True; "
            "pass enforce_sorted=False to have them sorted"
        )
    if counts[-1] <= 0:
        raise RuntimeError(f"{what}: every sequence must have a length greater than 0, but one has length {counts[-1]}")
