"""Packing PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by one gather where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..tensors._tensor import Tensor as OwnTensor
from ._layout import batch_sizes_of, inverse_of, steps_of
from ._torch_births import born_fresh_packed, born_packed
from ._torch_inputs import check_one_device
from ._torch_rows import Index, from_numpy, joined, rows_of
from ._torch_steps import gathers_packed, kernel_pack, packed_rows
from ._torch_watch import Undisturbed, is_plain_cpu, needs_grad, plain_classes, unwatched

__all__ = ["named", "pack_padded_sequence", "pack_sequence"]

# Measured; see benchmarks/bench_pack.py.
_FEW_STEPS: Final = 8
_LONG: Final = 200

# PyTorch's own constructor looks at the device of the batch sizes, which are on the CPU here.
_new: Final[Callable[..., PackedSequence]] = cast(Any, tuple).__new__


def pack_sequence(sequences: list[Any], enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_sequence``."""
    if sequences and plain_classes.issuperset(map(type, sequences)) and unwatched():
        with Undisturbed():
            packed = _packed_sequences(sequences, enforce_sorted)
        if packed is not None:
            return born_fresh_packed(packed)
    check_one_device(named(sequences), "pack_sequence")
    return born_packed(rnn.pack_sequence(sequences, enforce_sorted))


def named(sequences: list[Any]) -> list[tuple[str, Any]]:
    """Sequences with the names that messages use."""
    return [(f"sequence {index}", sequence) for index, sequence in enumerate(sequences)]


def _packed_sequences(sequences: list[Tensor], enforce_sorted: Any) -> PackedSequence | None:
    """None for what PyTorch refuses or converts: it shall say so itself."""
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


def _packed(data: Tensor, batch_sizes: Tensor, order: Tensor | None) -> PackedSequence:
    back = None if order is None else from_numpy(inverse_of(order.numpy()))
    return _new(PackedSequence, (data, batch_sizes, order, back))


def pack_padded_sequence(input: Any, lengths: Any, batch_first: Any, enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_padded_sequence``; lengths may be anything that makes a tensor."""
    if type(lengths) is OwnTensor:
        lengths = torch.as_tensor(lengths.numpy())
    if type(input) in plain_classes and type(batch_first) is bool and unwatched():
        with Undisturbed():
            packed = _packed_batch(input, lengths, batch_first, enforce_sorted)
        if packed is not None:
            return born_fresh_packed(packed)
    return born_packed(rnn.pack_padded_sequence(input, lengths, batch_first, enforce_sorted))


def _packed_batch(input: Tensor, lengths: Any, batch_first: bool, enforce_sorted: Any) -> PackedSequence | None:
    if type(lengths) is Tensor:
        if not lengths.is_cpu:
            return None
        if lengths.dtype is not torch.int64:
            lengths = lengths.to(dtype=torch.int64)
    elif isinstance(lengths, (list, tuple)):
        lengths = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    else:
        return None
    if not is_plain_cpu(input):
        return None
    order: Tensor | None = None
    if not enforce_sorted:
        lengths, order = torch.sort(lengths, descending=True)
    shape = input.shape
    if len(shape) > 1 and input.numel() and lengths.dim() == 1:
        batch, time = (shape[0], shape[1]) if batch_first else (shape[1], shape[0])
        if lengths.shape[0] == batch and time >= _FEW_STEPS:
            counts: Index = lengths.numpy()
            graph = input.requires_grad and torch.is_grad_enabled()
            if graph and batch == 1 and 0 < counts[0] <= time:
                length = int(counts[0])
                rows = input.flatten(0, 1)
                data = (
                    rows.index_select(0, torch.arange(length))
                    if order is not None
                    else torch.cat((rows if length == time else rows.narrow(0, 0, length),))
                )
                sizes: Index = np.ones(length, dtype=np.int64)
                return _packed(data, from_numpy(sizes), order)
            gathers = gathers_packed(input, batch, time, order is None, batch_first)
            # What the kernel is given, it checks itself.
            whole = counts[0] <= time and (
                not gathers or (counts[-1] > 0 and (order is not None or not (counts[1:] > counts[:-1]).any()))
            )
            # PyTorch's own way back takes each step, ours each of the lengths, and a little more to begin with.
            ours = graph and (time >= _LONG or 2 * batch <= time)
            if whole and (gathers or ours):
                back = None if order is None else from_numpy(inverse_of(order.numpy()))
                data, batch_sizes = packed_rows(input, lengths, order, back, batch_first)
                return _new(PackedSequence, (data, batch_sizes, order, back))
    if order is not None:
        input = input.index_select(0 if batch_first else 1, order)
    data, batch_sizes = kernel_pack(input, lengths, batch_first)
    return _packed(data, batch_sizes, order)
