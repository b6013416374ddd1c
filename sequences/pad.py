"""Padding and unpadding: between lists of sequences, padded batches and packed sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as index_of
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from ..tensors.numpy.alignment import served
from ..tensors.tensor.tensor import wrap
from .compiled import BATCH_FIRST, LEFT, PACKED, SEQUENCES, TIME_FIRST, move_rows
from .inputs import Array, array_of, arrays_of, is_tensor_like, is_torch, is_torch_packed, listed, padding_of
from .pack import batch_sizes_of, check_flag, fitted
from .packed import PackedSequence, arrays_in, inverse_of

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence

    from ..tensors.tensor.tensor import Tensor
    from .inputs import TensorLike

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
    sequences: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor | torch.Tensor:
    """A padded batch of a list of sequences of different lengths.

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
    >>> ds.pad_sequence([np.array([1, 2]), np.array([3])], batch_first=True, padding_value=-1).tolist()
    [[1, 2], [3, -1]]
    """
    what = "pad_sequence"
    sequences, tensors = listed(sequences, what)
    if tensors is not None:
        from . import torch_adapter

        return torch_adapter.pad_sequence(tensors, batch_first, padding_value, padding_side)
    arrays = arrays_of(sequences, what, RuntimeError)
    check_flag(batch_first, what)
    if not isinstance(cast(object, padding_side), str):
        raise TypeError(f"{what}: padding_side must be a str, not {padding_side!r}")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"{what}: padding_side must be 'left' or 'right', not {padding_side!r}")
    if not arrays:
        raise RuntimeError(f"{what}: received an empty list of sequences")
    first = arrays[0]
    fill = padding_of(padding_value, first.dtype, what, as_float=True)
    if first.ndim == 0:
        raise RuntimeError(f"{what}: sequence 0 has no dimensions, where a sequence has a length")
    trailing = first.shape[1:]
    parts = [fitted(array, trailing, index, what) for index, array in enumerate(arrays)]
    longest = max(part.shape[0] for part in parts)
    shape = (len(parts), longest) if batch_first else (longest, len(parts))
    padded = served(np.empty, (*shape, *trailing), first.dtype)
    if padded.size:
        layout = (BATCH_FIRST if batch_first else TIME_FIRST) | (LEFT if padding_side == "left" else 0)
        filled = np.full(trailing, fill, first.dtype)
        whole = tuple(np.ascontiguousarray(part, first.dtype) for part in parts)
        lengths = np.array([part.shape[0] for part in parts], np.int64)
        move_rows((padded,), layout, whole, SEQUENCES, lengths, None, filled.nbytes, filled)
    return wrap(padded)


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
    sequence: PackedSequence | TorchPackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor] | tuple[torch.Tensor, torch.Tensor]:
    """A padded batch of a packed sequence, and the lengths, in the order in which the batch was packed.

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
    if is_torch_packed(sequence):
        from . import torch_adapter

        return torch_adapter.pad_packed_sequence(sequence, batch_first, padding_value, total_length)
    what = "pad_packed_sequence"
    data, longest, lengths, places = _opened(sequence, what)
    if total_length is not None:
        total = _whole(total_length, f"{what}: total_length")
        if total < longest:
            raise ValueError(
                f"{what}: total_length must be at least the length of the longest sequence, {longest}, but is {total}"
            )
        longest = total
    check_flag(batch_first, what)
    fill = padding_of(padding_value, data.dtype, what)
    shape = (lengths.size, longest) if batch_first else (longest, lengths.size)
    padded = served(np.empty, (*shape, *data.shape[1:]), data.dtype)
    order = _order_of(places, lengths.size)
    if padded.size:
        filled = np.full(data.shape[1:], fill, data.dtype)
        layout = BATCH_FIRST if batch_first else TIME_FIRST
        move_rows((padded,), layout, (data,), PACKED, lengths, order, filled.nbytes, filled)
    if places is not None:
        lengths = lengths[places]
        if order is None:
            padded = served(padded.take, places, axis=0 if batch_first else 1)
    return wrap(padded), wrap(lengths)


@overload
def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]: ...
@overload
def unpack_sequence(packed_sequences: TorchPackedSequence) -> list[torch.Tensor]: ...
def unpack_sequence(packed_sequences: PackedSequence | TorchPackedSequence) -> list[Tensor] | list[torch.Tensor]:
    """The list of sequences that was packed, in its order.

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
    if is_torch_packed(packed_sequences):
        from . import torch_adapter

        return torch_adapter.unpack_sequence(packed_sequences)
    data, _, lengths, places = _opened(packed_sequences, "unpack_sequence")
    order = _order_of(places, lengths.size)
    counts = (lengths if order is None or places is None else lengths[places]).tolist()
    unpacked: list[Array] = served(lambda: [np.empty((count, *data.shape[1:]), data.dtype) for count in counts])
    if data.size:
        move_rows(tuple(unpacked), SEQUENCES, (data,), PACKED, lengths, order, data[0].nbytes, None)
    if order is None and places is not None:
        unpacked = [served(unpacked[place].copy) for place in cast("list[int]", places.tolist())]
    return [wrap(sequence) for sequence in unpacked]


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
def unpad_sequence(
    padded_sequences: Any,
    lengths: Any,
    batch_first: bool = False,
) -> list[Tensor] | list[torch.Tensor]:
    """The list of sequences in a padded batch.

    As ``torch.nn.utils.rnn.unpad_sequence``; the padded batch is not transposed in place.

    Parameters
    ----------
    padded_sequences : Tensor or array, shape (time, batch, *) or, with `batch_first`, (batch, time,
    *)
        The padded batch.
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
    if is_torch(padded_sequences):
        from . import torch_adapter

        return torch_adapter.unpad_sequence(padded_sequences, lengths, batch_first)
    what = "unpad_sequence"
    array = array_of(padded_sequences, f"{what}: padded_sequences")
    one_each: Sequence[Any] = lengths
    given: Array = np.asarray(
        [array_of(length, f"{what}: lengths") if is_tensor_like(length) else length for length in one_each]
        if isinstance(lengths, (list, tuple))
        else array_of(lengths, f"{what}: lengths")
    )
    if array.ndim < 2:
        raise IndexError(
            f"{what}: the batch must have at least two dimensions, time and batch, but has shape {array.shape}"
        )
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biuf"):
        raise TypeError(
            f"{what}: lengths must be real numbers in one dimension, not {given.dtype} of shape {given.shape}"
        )
    by_sequence = array if batch_first else array.swapaxes(0, 1)
    if given.size != by_sequence.shape[0]:
        raise ValueError(f"{what}: got {given.size} lengths for {by_sequence.shape[0]} sequences")
    # How many of the steps 0, 1, ... are less than each length: a fraction counts as a whole step,
    # NaN as none.
    steps = np.arange(by_sequence.shape[1], dtype=np.int64)
    counts = np.searchsorted(steps, np.where(np.isnan(given), 0, given), side="left").tolist()
    return [wrap(row[:count].copy()) for row, count in zip(by_sequence, counts, strict=True)]


def _opened(packed: object, what: str) -> tuple[Array, int, NDArray[np.int64], NDArray[Any] | None]:
    """The rows of the sequences, how many steps there are, the lengths by place, and each sequence's place, checked."""
    if not isinstance(packed, PackedSequence):
        raise TypeError(
            f"{what}: expected a PackedSequence, not a {type(packed).__module__}.{type(packed).__qualname__}"
        )
    data, batch_sizes, _, places = arrays_in(packed)
    if batch_sizes.ndim != 1 or batch_sizes.dtype != np.int64:
        raise RuntimeError(
            f"{what}: batch_sizes must be int64 in one dimension, not {batch_sizes.dtype} of shape {batch_sizes.shape}"
        )
    if batch_sizes.size == 0:
        raise RuntimeError(f"{what}: batch_sizes must not be empty")
    if (batch_sizes[1:] > batch_sizes[:-1]).any() or batch_sizes[-1] < 0:
        raise RuntimeError(f"{what}: batch_sizes must not be negative, nor grow from one step to the next")
    rows = int(batch_sizes.sum())
    if data.ndim == 0 or data.shape[0] < rows:
        raise RuntimeError(f"{what}: batch_sizes tell of {rows} rows, but data has shape {data.shape}")
    # How many steps reach beyond each place: the same arithmetic, which is its own inverse.
    lengths = batch_sizes_of(np.ascontiguousarray(batch_sizes))
    if places is not None:
        _check_places(places, lengths.size, what)
    return np.ascontiguousarray(data[:rows]), batch_sizes.size, lengths, places


def _order_of(places: NDArray[Any] | None, batch: int) -> NDArray[np.int64] | None:
    """Which sequence stands at each place; None where all stand as given, and where `places` is no permutation."""
    if places is None or places.size != batch:
        return None
    try:
        return inverse_of(places)
    except ValueError:
        return None


def _check_places(places: Array, batch: int, what: str) -> None:
    if places.ndim != 1:
        raise IndexError(f"{what}: unsorted_indices must have one dimension, not shape {places.shape}")
    if places.dtype != np.int64 and places.dtype != np.int32:
        raise RuntimeError(f"{what}: unsorted_indices must be int64 or int32, not {places.dtype}")
    outside = places[(places < 0) | (places >= batch)]
    if outside.size:
        raise RuntimeError(f"{what}: unsorted_indices has index {outside[0]}, out of bounds for {batch} sequences")


def _whole(number: object, what: str) -> int:
    if is_tensor_like(number):
        number = array_of(number, what).item()
    try:
        return index_of(number)  # type: ignore[arg-type]  # what is no integer is refused here
    except TypeError:
        raise TypeError(f"{what} must be an int, not {number!r}") from None
