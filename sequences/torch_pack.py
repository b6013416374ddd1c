"""Packing PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..scopes.context import CURRENT
from ..tensors.numpy.alignment import unserved
from ..tensors.tensor.tensor import Tensor as OwnTensor
from .inputs import batch_sizes_of, inverse_of, steps_of
from .torch_inputs import check_one_device
from .torch_packed import born_fresh_packed
from .torch_rows import (
    BelowAutograd,
    Index,
    aside,
    fast_dtypes,
    from_numpy,
    gathered_rows,
    gathers_packed,
    gathers_with_graph,
    is_plain_cpu,
    joined,
    kernel_pack,
    kernel_pad_sequence,
    needs_grad,
    packed_with_graph,
    plain_classes,
    rows_of,
)

__all__ = [
    "named",
    "pack_padded_sequence",
    "pack_sequence",
    "packed",
    "stacked",
    "tensor_of",
    "trailing_shapes",
]

# Packing PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by one gather where
# that is faster.


# Measured; see benchmarks/bench_pack.py.
_FEW: Final = 6
_FEW_STEPS: Final = 8
_SOME_STEPS: Final = 48
_LONG: Final = 200

_int64: Final = torch.int64
_strided: Final = torch.strided
_ones: Final[Callable[..., Tensor]] = torch.ones
_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
_squeeze_copy: Final[Callable[[Tensor, int], Tensor]] = cast(Any, torch).squeeze_copy
# PyTorch's own constructor looks at the device of the batch sizes, which are on the CPU here.
_new: Final[Callable[..., PackedSequence]] = cast(Any, tuple).__new__


def pack_sequence(sequences: list[Any], enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_sequence``."""
    if sequences and plain_classes.issuperset(map(type, sequences)):
        packed = unserved(aside, _packed_sequences, (sequences, enforce_sorted))
        if packed is not None:
            return packed if CURRENT.get() is None else born_fresh_packed(packed)
    check_one_device(named(sequences), "pack_sequence")
    return rnn.pack_sequence(sequences, enforce_sorted)


def named(sequences: list[Any]) -> list[tuple[str, Any]]:
    """Sequences with the names that messages use."""
    return [(f"sequence {index}", sequence) for index, sequence in enumerate(sequences)]


def _packed_sequences(given: tuple[list[Tensor], Any]) -> PackedSequence | None:
    """None for what PyTorch refuses or converts: it shall say so itself."""
    sequences, enforce_sorted = given
    first = sequences[0]
    if not is_plain_cpu(first) or not first.numel():
        return None
    try:
        lengths = [sequence.shape[0] for sequence in sequences]
    except (IndexError, RuntimeError):
        return None
    counts: Index = np.array(lengths)
    order: Tensor | None = None
    if not enforce_sorted:
        ordered, order = torch.sort(from_numpy(counts), descending=True)
        counts = ordered.numpy()
    if counts[-1] < 1 or (order is None and (counts[1:] > counts[:-1]).any()):
        return None
    if counts[-1] == counts[0]:
        return _packed_alike(sequences, order, int(counts[0]))
    if len(lengths) <= _FEW and not needs_grad(sequences):
        packed = _packed_few(sequences, counts, order)
        if packed is not None:
            return packed
    offsets = np.array(lengths).cumsum()
    offsets -= lengths
    if order is not None:
        offsets = offsets[order.numpy()]
    source = joined(sequences)
    if source is None:
        return None
    batch_sizes = batch_sizes_of(counts)
    _, times, ranks = steps_of(batch_sizes)
    return _packed(rows_of(source, offsets[ranks] + times, added=order is not None), from_numpy(batch_sizes), order)


def _packed_alike(sequences: list[Tensor], order: Tensor | None, length: int) -> PackedSequence | None:
    """As `_packed_sequences`, of sequences that are of one length: step after step is a stack of them."""
    first = sequences[0]
    ordered = order is not None and needs_grad(sequences)
    if len(sequences) == 1 and not ordered:
        data = torch.cat(sequences)
    else:
        if order is not None and not ordered:
            places: Index = order.numpy()
            sequences = [sequences[place] for place in places]
        try:
            data = torch.stack(sequences, 1)
        except (RuntimeError, TypeError):
            return None
        if data.dtype is not first.dtype or not data.is_cpu or data.layout is not torch.strided:
            return None
        if order is not None and ordered:
            # For the gradient's sake: see `rows_of`.
            data = data.index_select(1, order)
        data = data.flatten(0, 1)
    sizes: Index = np.full(length, len(sequences))
    return _packed(data, from_numpy(sizes), order)


def _packed_few(sequences: list[Tensor], counts: Index, order: Tensor | None) -> PackedSequence | None:
    """As `_packed_sequences`, by the kernels that PyTorch's own function comes to; None where it is to call them."""
    first = sequences[0]
    if order is not None:
        # The first of all decides on the dtype and the shape of all.
        dtype, row = first.dtype, first.shape[1:]
        if any([one.dtype is not dtype or one.shape[1:] != row for one in sequences]):  # noqa: C419  # a list is faster
            return None
        places: Index = order.numpy()
        sequences = [sequences[place] for place in places]
    if not all([sequence.is_cpu for sequence in sequences]):  # noqa: C419  # a list is faster
        return None
    try:
        with BelowAutograd():
            padded = kernel_pad_sequence(sequences, False, 0.0, "right")
            data, batch_sizes = kernel_pack(padded, from_numpy(counts), False)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None
    return _packed(data, batch_sizes, order)


def _packed(data: Tensor, batch_sizes: Tensor, order: Tensor | None) -> PackedSequence:
    return _new(PackedSequence, (data, batch_sizes, order, _inverse(order)))


def _inverse(order: Tensor | None) -> Tensor | None:
    return None if order is None else from_numpy(unserved(inverse_of, order.numpy()))


def pack_padded_sequence(input: Any, lengths: Any, batch_first: Any, enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_padded_sequence``; lengths may be anything that makes a tensor."""
    if type(lengths) is OwnTensor:
        lengths = torch.as_tensor(lengths.numpy())
    if type(input) in plain_classes and type(batch_first) is bool:
        packed = aside(_packed_batch, (input, lengths, batch_first, enforce_sorted))
        if packed is not None:
            return packed if CURRENT.get() is None else born_fresh_packed(packed)
    return rnn.pack_padded_sequence(input, lengths, batch_first, enforce_sorted)


def _packed_batch(given: tuple[Tensor, Any, bool, Any]) -> PackedSequence | None:
    input, lengths, batch_first, enforce_sorted = given
    if type(lengths) is Tensor:
        if lengths.dtype is not _int64:
            lengths = lengths.to(dtype=_int64)
    elif isinstance(lengths, (list, tuple)):
        lengths = torch.as_tensor(lengths, dtype=_int64, device="cpu")
    else:
        return None
    if not input.is_cpu or not lengths.is_cpu or input.is_nested:
        return None
    order: Tensor | None = None
    if not enforce_sorted:
        lengths, order = torch.sort(lengths, descending=True)
    shape = input.shape
    if len(shape) > 1 and lengths.dim() == 1:
        batch, time = (shape[0], shape[1]) if batch_first else (shape[1], shape[0])
        graph = input.requires_grad and _grad_enabled()
        if graph and batch == 1 and time >= _FEW_STEPS:
            packed = _packed_alone(input, lengths, order, batch_first, time)
            if packed is not None:
                return packed
        elif gathers_packed(input, batch, time, order is None, batch_first) and (
            not graph or gathers_with_graph(input, time, order is None, batch_first)
        ):
            if is_plain_cpu(input) and input.numel() and _are_whole(lengths, batch, time, order is None):
                back = _inverse(order)
                if graph:
                    data, batch_sizes = unserved(
                        packed_with_graph, input, lengths, order, back, batch_first, time, True
                    )
                else:
                    data, batch_sizes = unserved(gathered_rows, input, lengths, order, batch_first)
                return _new(PackedSequence, (data, batch_sizes, order, back))
        elif (
            graph
            and time >= _SOME_STEPS
            and (time >= _LONG or 2 * batch <= time)
            and input.dtype in fast_dtypes
            and (order is None or order.numel() == batch)
        ):
            # PyTorch's own way back takes each step, ours each of the lengths, and a little more to begin with.
            back = _inverse(order)
            data, batch_sizes = packed_with_graph(input, lengths, order, back, batch_first, time, False)
            if batch_sizes.shape[0] <= time:
                return _new(PackedSequence, (data, batch_sizes, order, back))
    if order is not None:
        input = input.index_select(0 if batch_first else 1, order)
    data, batch_sizes = kernel_pack(input, lengths, batch_first)
    return _packed(data, batch_sizes, order)


def _are_whole(lengths: Tensor, batch: int, time: int, ordered: bool) -> bool:
    """Whether lengths are one for each sequence, in range and in descending order; PyTorch shall refuse the others."""
    counts: Index = lengths.numpy()
    return (
        counts.size == batch
        and counts[0] <= time
        and counts[-1] > 0
        and not (ordered and np.count_nonzero(counts[1:] > counts[:-1]))
    )


def _packed_alone(
    input: Tensor, lengths: Tensor, order: Tensor | None, batch_first: bool, time: int
) -> PackedSequence | None:
    """A batch of one sequence, with history: PyTorch's own way back takes each step. None where its length is wrong."""
    counts = cast("list[int]", cast(Any, lengths).tolist())
    length = counts[0] if len(counts) == 1 else 0
    if not 0 < length <= time or input.dtype not in fast_dtypes or input.layout is not _strided or not input.numel():
        return None
    if order is not None:
        data = input.flatten(0, 1).index_select(0, torch.arange(length))
    elif length == time and input.is_contiguous():
        data = _squeeze_copy(input, 0 if batch_first else 1)
    else:
        data = torch.cat((input.flatten(0, 1).narrow(0, 0, length),))
    return _packed(data, _ones(length, dtype=_int64), order)


# The batch of a field of PyTorch's tensors: one packed sequence, or one tensor.


def trailing_shapes(tensors: list[Tensor], names: list[str]) -> list[tuple[int, ...]]:
    """The shapes of a field, which differ in the first axis at most.

    Raises
    ------
    ValueError
        They differ in another one.
    DeviceMismatchError
        The tensors are not on one device.
    """
    check_one_device(zip(names, tensors, strict=True), "pack_collate")
    shapes = [tuple(tensor.shape) for tensor in tensors]
    for name, shape in zip(names, shapes, strict=True):
        if len(shape) != len(shapes[0]) or shape[1:] != shapes[0][1:]:
            raise ValueError(f"{name} has shape {shape}, where sample 0 has {shapes[0]}")
    return shapes


def packed(tensors: list[Tensor], enforce_sorted: bool, what: str) -> PackedSequence:
    """The packed sequence of a field, in a dtype that holds all of its tensors.

    Raises
    ------
    RuntimeError
        They are to be sorted and are not.
    """
    lengths = [tensor.shape[0] for tensor in tensors]
    if enforce_sorted and lengths != sorted(lengths, reverse=True):
        raise RuntimeError(
            f"{what}: the sequences must be sorted by length, longest first, when enforce_sorted is True; "
            "pass enforce_sorted=False to have them sorted"
        )
    return pack_sequence(_of_one_dtype(tensors), enforce_sorted)


def stacked(tensors: list[Tensor]) -> Tensor:
    """The tensors of a field along a new first axis, in a dtype that holds all of them."""
    return torch.stack(_of_one_dtype(tensors))


def tensor_of(numbers: NDArray[Any]) -> Tensor:
    """A field of numbers as a tensor."""
    return torch.tensor(np.asarray(numbers))


def _of_one_dtype(tensors: list[Tensor]) -> list[Tensor]:
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    if len(dtypes) == 1:
        return tensors
    dtype = functools.reduce(torch.promote_types, dtypes)
    return [tensor.to(dtype) for tensor in tensors]
