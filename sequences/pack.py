"""Packing: from a list of sequences, or from a padded batch, to a packed sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ..tensors.numpy.alignment import served
from .compiled import BATCH_FIRST, PACKED, SEQUENCES, TIME_FIRST, count_above, move_rows
from .inputs import Array, array_of, arrays_of, is_torch, lengths_of, listed
from .packed import PackedSequence, inverse_of

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence

    from .inputs import TensorLike

__all__ = [
    "batch_sizes_of",
    "check_flag",
    "descending_order",
    "fitted",
    "pack_arrays",
    "pack_padded_sequence",
    "pack_sequence",
]


def descending_order(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices that sort lengths from the longest to the shortest; those of one length keep their order."""
    # The complement reverses the order of all int64, where a minus would overflow at the smallest.
    return np.argsort(~lengths, kind="stable")


def batch_sizes_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many sequences reach each time step, given their lengths in descending order; its own inverse."""
    batch_sizes = np.empty(int(lengths[0]), np.int64)
    count_above(batch_sizes, lengths)
    return batch_sizes


@overload
def pack_sequence(sequences: Iterable[TensorLike], enforce_sorted: bool = True) -> PackedSequence: ...
@overload
def pack_sequence(sequences: Iterable[torch.Tensor], enforce_sorted: bool = True) -> TorchPackedSequence: ...
def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence | TorchPackedSequence:
    """A packed sequence of a list of sequences of different lengths.

    As ``torch.nn.utils.rnn.pack_sequence``, without padding in between. Given PyTorch's tensors,
    PyTorch's packed sequence, with gradients.

    Parameters
    ----------
    sequences : list of Tensor or array, each of shape (length, *)
        At least one, none of them empty. The dtype of the first is that of the result.
    enforce_sorted : bool, default True
        Refuse sequences that are not sorted by length, longest first. With False they are sorted,
        and the result has indices. Arrays of one length stay in the order given, PyTorch's tensors
        are in the order of ``torch.sort``.

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
        from . import torch_adapter

        return torch_adapter.pack_sequence(tensors, enforce_sorted)
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

    As ``torch.nn.utils.rnn.pack_padded_sequence``. Given PyTorch's tensor, PyTorch's packed
    sequence, with gradients.

    Parameters
    ----------
    input : Tensor or array, shape (time, batch, *) or, with `batch_first`, (batch, time, *)
        The padded batch, not empty.
    lengths : list, array or Tensor, shape (batch,)
        The length of each sequence, at least 1. Elements beyond a length are left out.
    batch_first : bool, default False
        The layout of `input`.
    enforce_sorted : bool, default True
        Refuse sequences that are not sorted by length, longest first. With False they are sorted,
        and the result has indices. Arrays of one length stay in the order given, PyTorch's tensors
        are in the order of ``torch.sort``.

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
        from . import torch_adapter

        return torch_adapter.pack_padded_sequence(input, lengths, batch_first, enforce_sorted)
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
            # PyTorch selects by the order, so that with fewer lengths than sequences the rest is
            # left out.
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
    kept = np.minimum(counts, array.shape[1 - batch_axis])
    data = served(np.empty, (int(kept.sum()), *array.shape[2:]), array.dtype)
    padded = np.ascontiguousarray(array[:batch] if batch_first else array[:, :batch])
    layout = BATCH_FIRST if batch_first else TIME_FIRST
    move_rows((data,), PACKED, (padded,), layout, kept, order, data[0].nbytes, None)
    return PackedSequence._of((data, batch_sizes, order, None if order is None else served(inverse_of, order)))


def pack_arrays(
    arrays: list[Array], enforce_sorted: bool, what: str, dtype: np.dtype[Any] | None = None
) -> tuple[Array, Array, Array | None, Array | None]:
    """The four fields of the packed sequence of at least one array; `dtype` is that of the first where left out."""
    shapes = [array.shape for array in arrays]
    if () in shapes:
        raise IndexError(f"{what}: sequence {shapes.index(())} has no dimensions, where a sequence has a length")
    first = arrays[0]
    trailing = first.shape[1:]
    parts = [
        array if shape[1:] == trailing else fitted(array, trailing, index, what)
        for index, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
    ]
    counts = np.array([shape[0] for shape in shapes], dtype=np.int64)
    if 0 in trailing or not counts.any():
        raise RuntimeError(f"{what}: cannot pack empty sequences, of shape {first.shape}")
    order = None if enforce_sorted else descending_order(counts)
    if order is not None:
        counts = counts[order]
    _check_lengths(counts, what)
    data = np.empty((int(counts.sum()), *trailing), first.dtype if dtype is None else dtype)
    # PyTorch too copies each sequence into the dtype of the first.
    sequences = tuple(np.ascontiguousarray(part, data.dtype) for part in parts)
    move_rows((data,), PACKED, sequences, SEQUENCES, counts, order, data[0].nbytes, None)
    return data, batch_sizes_of(counts), order, None if order is None else inverse_of(order)


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
