"""Packing: from a list of sequences, or from a padded batch, to a packed sequence."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from .adapter import Block, Integers, has_torch, is_tensor_like, is_torch, is_torch_packed
from .array_adapter import ARRAYS, ArrayAdapter
from .rows import Rows, counts_above, move, rows_of_packed, rows_of_padded, rows_of_sequences

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence

    from .adapter import TensorLike
    from .packed import PackedSequence

__all__ = [
    "adapter_of",
    "check_flag",
    "check_lengths",
    "check_padded",
    "listed",
    "pack_padded_sequence",
    "pack_sequence",
    "sequences_in",
]


def adapter_of(thing: object) -> ArrayAdapter:
    """Return the adapter of a tensor, array or packed sequence; for other objects, `ARRAYS`."""
    if is_torch(thing) or is_torch_packed(thing):
        from .torch_adapter import TENSORS

        return TENSORS
    return ARRAYS


def listed(sequences: Any, what: str) -> tuple[ArrayAdapter, Any]:
    """Return the adapter of an iterable of sequences, and the sequences as a list.

    A single tensor or array is returned as it is, except a tensor of PyTorch.

    Parameters
    ----------
    sequences : object
        The user's argument.
    what : str
        The name of the function, for the message.

    Raises
    ------
    TypeError
        Only some of the sequences are tensors of PyTorch.
    """
    if is_torch(sequences):
        return adapter_of(sequences), list(sequences)
    if is_tensor_like(sequences) or not isinstance(sequences, Iterable):
        return ARRAYS, sequences
    given: list[Any] = list(cast(Any, sequences))
    classes = set(map(type, given))
    torch_classes = {cls for cls in classes if has_torch() and issubclass(cls, sys.modules["torch"].Tensor)}
    if torch_classes and torch_classes != classes:
        are_torch = [type(sequence) in torch_classes for sequence in given]
        torch_at, other_at = are_torch.index(True), are_torch.index(False)
        cls = cast("type[object]", type(given[other_at]))
        raise TypeError(
            f"{what}: sequence {torch_at} is a torch.Tensor and sequence {other_at} a "
            f"{cls.__module__}.{cls.__qualname__}; give sequences of one kind: torch.from_numpy(array) makes a tensor "
            "of an array, tensor.numpy() an array of a tensor"
        )
    return adapter_of(given[0] if given else None), given


@overload
def pack_sequence(sequences: Iterable[TensorLike], enforce_sorted: bool = True) -> PackedSequence: ...
@overload
def pack_sequence(sequences: Iterable[torch.Tensor], enforce_sorted: bool = True) -> TorchPackedSequence: ...
def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> Any:
    """Return a packed sequence of a list of sequences of different lengths.

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
    adapter, given = listed(sequences, "pack_sequence")
    return adapter.call("pack_sequence", _pack_sequence, given, enforce_sorted)


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
def pack_padded_sequence(input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    """Return a packed sequence of a padded batch.

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
    adapter = adapter_of(input)
    return adapter.call("pack_padded_sequence", _pack_padded_sequence, input, lengths, batch_first, enforce_sorted)


def _pack_sequence(adapter: ArrayAdapter, what: str, sequences: Any, enforce_sorted: Any) -> Any:
    blocks, lengths = sequences_in(adapter, adapter.blocks(sequences, what, TypeError), what, IndexError)
    if 0 in blocks[0].shape[1:] or not lengths.any():
        raise RuntimeError(f"{what}: cannot pack empty sequences, of shape {tuple(blocks[0].shape)}")
    order = None if enforce_sorted else adapter.descending(lengths)
    if order is not None:
        lengths = lengths[order]
        blocks = [blocks[place] for place in order.tolist()]
    return _packed(adapter, rows_of_sequences(blocks, int(lengths.max())), lengths, order, blocks[0].shape[1:], what)


def _pack_padded_sequence(
    adapter: ArrayAdapter, what: str, input: Any, lengths: Any, batch_first: Any, enforce_sorted: Any
) -> Any:
    padded = adapter.block(input, f"{what}: input")
    numbers = adapter.lengths(lengths, what)
    if numbers.dtype.kind == "f" and not (np.abs(numbers) < 2.0**63).all():
        raise RuntimeError(f"{what}: lengths must be finite and fit into int64, but got {numbers.tolist()}")
    counts = numbers.astype(np.int64)
    check_flag(batch_first, what)
    check_padded(padded, what)
    batch, order = padded.shape[0 if batch_first else 1], None
    if not enforce_sorted:
        if counts.ndim > 1:
            raise IndexError(f"{what}: lengths must have one dimension, not shape {counts.shape}")
        if counts.ndim:
            if len(counts) > batch:
                raise RuntimeError(f"{what}: got {len(counts)} lengths for {batch} sequences")
            order = adapter.descending(counts)
            counts = counts[order]
            # With fewer lengths than sequences PyTorch leaves out the other sequences.
            batch = len(counts)
    if counts.ndim != 1:
        raise RuntimeError(f"{what}: lengths must have one dimension, not shape {counts.shape}")
    if 0 in padded.shape or batch == 0:
        raise RuntimeError(f"{what}: cannot pack an empty input, of shape {tuple(padded.shape)}")
    if len(counts) != batch:
        raise RuntimeError(f"{what}: expected as many lengths as sequences, but got {len(counts)} (batch size {batch})")
    (padded,) = adapter.alike([padded], what)
    source = rows_of_padded(padded, batch_first)
    if order is not None:
        source = source._replace(starts=source.starts[order])
    return _packed(adapter, source, counts, order, padded.shape[2:], what)


def _packed(
    adapter: ArrayAdapter, source: Rows, lengths: Integers, order: Integers | None, row: tuple[int, ...], what: str
) -> Any:
    """Return a new packed sequence with a copy of rows.

    The sequences are in descending order of length already. `order` has the index that each had
    before; None if they were given in this order.
    """
    check_lengths(lengths, what)
    batch_sizes = counts_above(lengths)
    # A length beyond the input adds a step to batch_sizes and no rows, as it does in PyTorch.
    lengths = np.minimum(lengths, len(source.steps))
    data = adapter.empty((int(lengths.sum()), *row), source.blocks[0])
    move(rows_of_packed(data, batch_sizes, np.arange(len(lengths))), source, lengths, row)
    return adapter.packed(data, batch_sizes, order, None if order is None else np.argsort(order))


def sequences_in(
    adapter: ArrayAdapter, blocks: list[Block], what: str, first_refusal: type[Exception]
) -> tuple[list[Block], Integers]:
    """Return contiguous sequences, with dtype and trailing shape of the first, and their lengths.

    Raises
    ------
    RuntimeError
        There are no sequences, or one does not fit the first.
    IndexError
        A sequence but the first has no dimensions.
    first_refusal
        The first sequence has no dimensions.
    """
    if not blocks:
        raise RuntimeError(f"{what}: received an empty list of sequences")
    shapes = [block.shape for block in blocks]
    if () in shapes:
        place = shapes.index(())
        if place:
            raise IndexError(f"{what}: sequence {place} has no dimensions, where a sequence has a length")
        raise first_refusal(f"{what}: sequence 0 has no dimensions, where a sequence has a length")
    return adapter.alike(blocks, what), np.array([shape[0] for shape in shapes])


def check_padded(padded: Block, what: str) -> None:
    """Raise `IndexError` if a padded batch has fewer than two dimensions."""
    if padded.ndim < 2:
        raise IndexError(
            f"{what}: the batch must have at least two dimensions, time and batch, but has shape {tuple(padded.shape)}"
        )


def check_flag(flag: object, what: str, name: str = "batch_first") -> None:
    """Raise `TypeError` if a flag is not a bool.

    Other types are refused because arguments in a wrong order would otherwise go unnoticed.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"{what}: {name} must be a bool, not {flag!r}")


def check_lengths(lengths: Integers, what: str) -> None:
    """Raise `RuntimeError` if lengths are not sorted, longest first, or one is not positive."""
    if (lengths[1:] > lengths[:-1]).any():
        raise RuntimeError(
            f"{what}: the sequences must be sorted by length, longest first, when enforce_sorted is True; "
            "pass enforce_sorted=False to have them sorted"
        )
    if lengths[-1] <= 0:
        raise RuntimeError(
            f"{what}: every sequence must have a length greater than 0, but one has length {lengths[-1]}"
        )
