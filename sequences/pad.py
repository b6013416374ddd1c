"""Padding and unpadding: between lists of sequences, padded batches and packed sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as index_of
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .adapter import Integers
from .array_adapter import ArrayAdapter
from .pack import adapter_of, check_flag, check_padded, listed, sequences_in
from .rows import Rows, counts_above, move, rows_of_packed, rows_of_padded, rows_of_sequences

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence

    from ..tensors.tensor.tensor import Tensor
    from .adapter import TensorLike
    from .packed import PackedSequence

__all__ = [
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


@overload
def pad_sequence(
    sequences: Iterable[TensorLike],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor: ...
@overload
def pad_sequence(
    sequences: Iterable[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor: ...
def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Any:
    """Return a padded batch of a list of sequences of different lengths.

    As ``torch.nn.utils.rnn.pad_sequence``.

    Parameters
    ----------
    sequences : list of Tensor or array, each of shape (length, *)
        At least one. The dtype and the trailing shape of the first are those of the result.
    batch_first : bool, default False
        The layout of the result.
    padding_value : float, default 0.0
        What fills the rest.
    padding_side : {"right", "left"}
        At which end of each sequence the padding goes.

    Returns
    -------
    Tensor, shape (time, batch, *) or, with `batch_first`, (batch, time, *)
        New, born in the current scope: it shares no memory with the sequences.

    Raises
    ------
    RuntimeError
        No sequence was given, one does not fit the first, `padding_value` does not fit the dtype,
        or `padding_side` is neither.
    IndexError
        A sequence but the first has no dimensions.
    TypeError
        A sequence is neither a Tensor nor an array, or an option is of the wrong type.
    DisposedError
        A Tensor has been disposed.

    Examples
    --------
    >>> import disposescope as ds
    >>> import numpy as np
    >>> sequences = [np.array([1, 2]), np.array([3])]
    >>> ds.pad_sequence(sequences, batch_first=True, padding_value=-1).tolist()
    [[1, 2], [3, -1]]
    """
    adapter, given = listed(sequences, "pad_sequence")
    return adapter.call("pad_sequence", _pad_sequence, given, batch_first, padding_value, padding_side)


@overload
def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def pad_packed_sequence(
    sequence: TorchPackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> Any:
    """Return a padded batch of a packed sequence, and the lengths, in the order before packing.

    As ``torch.nn.utils.rnn.pad_packed_sequence``.

    Parameters
    ----------
    sequence : PackedSequence
        The packed sequence.
    batch_first : bool, default False
        The layout of the result.
    padding_value : number, default 0.0
        What fills the rest.
    total_length : int, optional
        Pad to this length instead of that of the longest sequence.

    Returns
    -------
    padded : Tensor, shape (time, batch, *) or, with `batch_first`, (batch, time, *)
        New, born in the current scope: it outlives the packed sequence.
    lengths : Tensor of int64, shape (batch,)
        Likewise.

    Raises
    ------
    ValueError
        `total_length` is less than the length of the longest sequence.
    RuntimeError
        The fields of `sequence` do not belong together, or `padding_value` does not fit the dtype.
    TypeError
        `sequence` is no PackedSequence, or an option is of the wrong type.
    DisposedError
        `sequence` has been disposed.

    Examples
    --------
    >>> import disposescope as ds
    >>> packed = ds.pack_sequence([ds.arange(3), ds.arange(2)])
    >>> padded, lengths = ds.pad_packed_sequence(packed, batch_first=True, total_length=4)
    >>> padded.tolist(), lengths.tolist()
    ([[0, 1, 2, 0], [0, 1, 0, 0]], [3, 2])
    """
    adapter = adapter_of(sequence)
    return adapter.call("pad_packed_sequence", _pad_packed_sequence, sequence, batch_first, padding_value, total_length)


@overload
def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]: ...
@overload
def unpack_sequence(packed_sequences: TorchPackedSequence) -> list[torch.Tensor]: ...
def unpack_sequence(packed_sequences: Any) -> Any:
    """Return the list of sequences that was packed, in its order.

    As ``torch.nn.utils.rnn.unpack_sequence``, without padding in between.

    Parameters
    ----------
    packed_sequences : PackedSequence
        The packed sequence.

    Returns
    -------
    list of Tensor, each of shape (length, *)
        New, born in the current scope, each with memory of its own: they outlive the packed
        sequence.

    Raises
    ------
    RuntimeError
        The fields of the packed sequence do not belong together.
    TypeError
        It is no PackedSequence.
    DisposedError
        It has been disposed.

    Examples
    --------
    >>> import disposescope as ds
    >>> packed = ds.pack_sequence([ds.arange(2), ds.arange(3)], enforce_sorted=False)
    >>> [sequence.tolist() for sequence in ds.unpack_sequence(packed)]
    [[0, 1], [0, 1, 2]]
    """
    return adapter_of(packed_sequences).call("unpack_sequence", _unpack_sequence, packed_sequences)


@overload
def unpad_sequence(
    padded_sequences: TensorLike,
    lengths: TensorLike | Sequence[float],
    batch_first: bool = False,
) -> list[Tensor]: ...
@overload
def unpad_sequence(
    padded_sequences: torch.Tensor,
    lengths: torch.Tensor | TensorLike | Sequence[float],
    batch_first: bool = False,
) -> list[torch.Tensor]: ...
def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> Any:
    """Return the list of sequences in a padded batch.

    As ``torch.nn.utils.rnn.unpad_sequence``; the padded batch is not transposed in place.

    Parameters
    ----------
    padded_sequences : Tensor or array, shape (time, batch, *)
        The padded batch; its shape is (batch, time, *) with `batch_first`.
    lengths : Tensor, array or list, shape (batch,)
        The length of each sequence; what is longer than the batch is the whole of it, and what is
        negative is nothing.
    batch_first : bool, default False
        The layout of the batch.

    Returns
    -------
    list of Tensor, each of shape (length, *)
        New, born in the current scope, each with memory of its own.

    Raises
    ------
    ValueError
        There are not as many lengths as sequences.
    IndexError
        The batch has fewer than two dimensions.
    TypeError
        The batch is neither a Tensor nor an array, or the lengths are not real numbers in one
        dimension.
    DisposedError
        A Tensor has been disposed.

    Examples
    --------
    >>> import disposescope as ds
    >>> import numpy as np
    >>> [sequence.tolist() for sequence in ds.unpad_sequence(np.array([[1, 2], [3, 0]]), [2, 1])]
    [[1, 3], [2]]
    """
    adapter = adapter_of(padded_sequences)
    return adapter.call("unpad_sequence", _unpad_sequence, padded_sequences, lengths, batch_first)


def _pad_sequence(
    adapter: ArrayAdapter, what: str, sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any
) -> Any:
    given = adapter.blocks(sequences, what, RuntimeError)
    check_flag(batch_first, what)
    if not isinstance(padding_side, str):
        raise TypeError(f"{what}: padding_side must be a str, not {padding_side!r}")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"{what}: padding_side must be 'left' or 'right', not {padding_side!r}")
    blocks, lengths = sequences_in(adapter, given, what, RuntimeError)
    row, time = blocks[0].shape[1:], int(lengths.max())
    shape = _padded_shape(batch_first, len(blocks), time, row)
    padded = adapter.full(shape, blocks[0], padding_value, what, True)
    target = rows_of_padded(padded, batch_first)
    if padding_side == "left":
        target = target._replace(starts=target.starts + (time - lengths) * (1 if batch_first else len(blocks)))
    move(target, rows_of_sequences(blocks, time), lengths, row)
    return adapter.tensor(padded)


def _pad_packed_sequence(
    adapter: ArrayAdapter, what: str, sequence: Any, batch_first: Any, padding_value: Any, total_length: Any
) -> tuple[Any, Any]:
    source, lengths, row = _rows_in_packed(adapter, sequence, what)
    time = len(source.steps)
    if total_length is not None:
        total = _index(total_length, f"{what}: total_length")
        if total < time:
            raise ValueError(
                f"{what}: total_length must be at least the length of the longest sequence, {time}, but is {total}"
            )
        time = total
    check_flag(batch_first, what)
    shape = _padded_shape(batch_first, len(lengths), time, row)
    padded = adapter.full(shape, source.blocks[0], padding_value, what, False)
    move(rows_of_padded(padded, batch_first), source, lengths, row)
    return adapter.tensor(padded), adapter.tensor(lengths)


def _unpack_sequence(adapter: ArrayAdapter, what: str, packed_sequences: Any) -> list[Any]:
    return _separated(adapter, *_rows_in_packed(adapter, packed_sequences, what))


def _unpad_sequence(
    adapter: ArrayAdapter, what: str, padded_sequences: Any, lengths: Any, batch_first: Any
) -> list[Any]:
    padded = adapter.block(padded_sequences, f"{what}: padded_sequences")
    numbers = adapter.lengths(lengths, what)
    if numbers.ndim != 1:
        raise TypeError(f"{what}: lengths must have one dimension, not shape {numbers.shape}")
    check_padded(padded, what)
    batch, time = padded.shape[:2] if batch_first else padded.shape[1::-1]
    if len(numbers) != batch:
        raise ValueError(f"{what}: got {len(numbers)} lengths for {batch} sequences")
    (padded,) = adapter.alike([padded], what)
    # Lengths as PyTorch's function takes them: fractions are rounded up, NaN is 0.
    steps = np.ceil(np.clip(numbers.astype(np.float64), 0, time))
    counts = np.nan_to_num(steps).astype(np.int64)
    return _separated(adapter, rows_of_padded(padded, batch_first), counts, padded.shape[2:])


def _separated(adapter: ArrayAdapter, source: Rows, lengths: Integers, row: tuple[int, ...]) -> list[Any]:
    """Return a new tensor for each sequence, with a copy of its rows."""
    blocks = [adapter.empty((length, *row), source.blocks[0]) for length in lengths.tolist()]
    move(rows_of_sequences(blocks, len(source.steps)), source, lengths, row)
    return [adapter.tensor(block) for block in blocks]


def _padded_shape(batch_first: bool, batch: int, time: int, row: tuple[int, ...]) -> tuple[int, ...]:
    return (batch, time, *row) if batch_first else (time, batch, *row)


def _rows_in_packed(adapter: ArrayAdapter, packed: Any, what: str) -> tuple[Rows, Integers, tuple[int, ...]]:
    """Return the rows of a packed sequence, the lengths, and the shape of a row.

    Rows and lengths are in the order that the sequences had before packing.

    Raises
    ------
    RuntimeError, IndexError
        The fields do not belong together.
    """
    data, batch_sizes, places = adapter.fields(packed, what)
    if batch_sizes.ndim != 1 or batch_sizes.dtype != np.int64:
        raise RuntimeError(
            f"{what}: batch_sizes must be int64 in one dimension, not {batch_sizes.dtype} of shape {batch_sizes.shape}"
        )
    if not len(batch_sizes):
        raise RuntimeError(f"{what}: batch_sizes must not be empty")
    if batch_sizes[-1] < 0 or (batch_sizes[1:] > batch_sizes[:-1]).any():
        raise RuntimeError(f"{what}: batch_sizes must not be negative, nor grow from one step to the next")
    rows, batch = sum(batch_sizes.tolist()), int(batch_sizes[0])
    if data.ndim == 0 or data.shape[0] < rows:
        raise RuntimeError(f"{what}: batch_sizes have {rows} rows, but data has shape {tuple(data.shape)}")
    ranks, lengths = np.arange(batch), counts_above(batch_sizes)
    if places is not None:
        if places.ndim != 1:
            raise IndexError(f"{what}: unsorted_indices must have one dimension, not shape {places.shape}")
        if places.dtype != np.int64 and places.dtype != np.int32:
            raise RuntimeError(f"{what}: unsorted_indices must be int64 or int32, not {places.dtype}")
        outside = places[(places < 0) | (places >= batch)]
        if len(outside):
            raise RuntimeError(f"{what}: unsorted_indices has index {outside[0]}, out of bounds for {batch} sequences")
        ranks = places.astype(np.int64)
        lengths = lengths[ranks]
    (data,) = adapter.alike([data], what)
    return rows_of_packed(data, batch_sizes, ranks), lengths, data.shape[1:]


def _index(number: Any, what: str) -> int:
    try:
        return index_of(number.item() if hasattr(number, "item") else number)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {number!r}") from None
