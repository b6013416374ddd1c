"""Padding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by the fastest way for each shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..scopes._current import CURRENT
from ._torch_births import born_fresh, born_tensors
from ._torch_inputs import check_one_device
from ._torch_pack import named
from ._torch_rows import Index, apply_function, from_numpy, gather, joined, rows_of, split
from ._torch_steps import gathers_padded, kernel_pad, padded_rows
from ._torch_watch import (
    Undisturbed,
    fast_dtypes,
    is_plain_cpu,
    needs_grad,
    only_ours_look_on,
    plain_classes,
    quietly,
    unwatched,
)

__all__ = ["check_packed", "opened", "pad_packed_sequence", "pad_plain_sequences", "pad_sequence"]

_C: Final[Any] = torch._C
_function_modes: Final[Callable[[], int]] = _C._len_torch_function_stack
_stack: Final[Callable[..., Tensor]] = torch.stack
_strided: Final = torch.strided
_NUMBERS: Final = frozenset({int, float})
_kernel: Final[Callable[..., Tensor]] = _C._nn.pad_sequence

# Measured; see benchmarks/bench_pack.py.
_FEW: Final = 12
_FEW_GRADS: Final = 4
_SHORT: Final = 14_000
_FEW_STEPS: Final = 8
_FEW_PLACES: Final = 64


def pad_sequence(sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    """As ``torch.nn.utils.rnn.pad_sequence``."""
    if plain_classes.issuperset(map(type, sequences)):
        return pad_plain_sequences(sequences, batch_first, padding_value, padding_side)
    return _padded_by_pytorch(sequences, batch_first, padding_value, padding_side)


def pad_plain_sequences(sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    """As `pad_sequence`, of tensors of plain classes."""
    padded: Tensor | None = None
    # With few sequences PyTorch's kernel takes less than a handful of calls of Python's.
    if not _function_modes():
        padded = _padded_sequences(sequences, batch_first, padding_value, padding_side)
    elif only_ours_look_on():
        with Undisturbed():
            padded = _padded_sequences(sequences, batch_first, padding_value, padding_side)
    if padded is None:
        return _padded_by_pytorch(sequences, batch_first, padding_value, padding_side)
    if CURRENT.get() is not None:
        born_fresh((padded,))
    return padded


def _padded_by_pytorch(sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    check_one_device(named(sequences), "pad_sequence")
    with quietly(sequences):
        padded = rnn.pad_sequence(sequences, batch_first, padding_value, padding_side)
    born_tensors(padded)
    return padded


def _padded_sequences(sequences: Any, batch_first: Any, fill: Any, side: Any) -> Tensor | None:
    """None where they are not all on the CPU, or there are none."""
    graph = False
    sequence = None
    for sequence in sequences:
        if not sequence.is_cpu:
            return None
        if sequence.requires_grad:
            graph = True
    if sequence is None:
        return None
    if len(sequences) == 1:
        if (
            type(batch_first) is bool
            and fill == 0
            and (side == "right" or side == "left")
            and sequence.dtype in fast_dtypes
            and sequence.layout is _strided
            and sequence.dim()
            and not sequence.is_nested
        ):
            return _stack(sequences, 0 if batch_first else 1)
    elif len(sequences) >= _FEW or (graph and len(sequences) > _FEW_GRADS):
        padded = _gathered_padding(sequences, batch_first, fill, side, graph and torch.is_grad_enabled())
        if padded is not None:
            return padded
    return _kernel(sequences, batch_first, fill, side)


def _gathered_padding(sequences: Any, batch_first: Any, fill: Any, side: Any, graph: bool) -> Tensor | None:
    """None where PyTorch's kernel is faster, or shall say what is wrong."""
    first = sequences[0]
    if (
        type(batch_first) is not bool
        or type(fill) not in _NUMBERS
        or (side != "right" and side != "left")
        or not is_plain_cpu(first)
        or not first.numel()
        or not unwatched()
    ):
        return None
    shape = first.shape
    try:
        # Three of them tell what is worth asking of all.
        some = shape[0], sequences[len(sequences) // 2].shape[0], sequences[-1].shape[0]
        alike = some[0] == some[1] == some[2]
        if not graph and not alike and not _is_short(first, max(some)):
            return None
        shapes = [sequence.shape for sequence in sequences]
        if alike and fill == 0 and shapes.count(shape) == len(shapes):
            stacked: Tensor = torch.stack(sequences, 0 if batch_first else 1)
            return stacked if stacked.dtype is first.dtype and stacked.layout is torch.strided else None
        lengths = [shape[0] for shape in shapes]
    except (IndexError, RuntimeError):
        return None
    longest = max(lengths)
    if min(lengths) < 1:
        return None
    if graph:
        trailing = shape[1:]
        dtype = first.dtype
        if any([each[1:] != trailing for each in shapes]) or any([each.dtype is not dtype for each in sequences]):  # noqa: C419  # lists are faster
            return None
        result: Tensor = _apply_padding(lengths, longest, batch_first, float(fill), side == "left", *sequences)
        return result
    if not _is_short(first, longest):
        return None
    source = joined(sequences)
    return None if source is None else _laid_out(source, lengths, longest, batch_first, float(fill), side == "left")


def _is_short(first: Tensor, longest: int) -> bool:
    """Whether sequences of this length are short enough to be gathered row by row."""
    return longest * (32 + first.numel() // first.shape[0] * first.element_size()) <= _SHORT


def _laid_out(source: Tensor, given: list[int], longest: int, batch_first: bool, fill: float, left: bool) -> Tensor:
    lengths: Index = np.array(given)
    ends = lengths.cumsum()
    rows = int(ends[-1])
    steps = np.arange(longest)
    starts = ends - lengths
    if left:
        skipped = longest - lengths
        index = np.where(steps >= skipped[:, None], steps + (starts - skipped)[:, None], rows)
    elif batch_first:
        index = np.where(steps < lengths[:, None], steps + starts[:, None], rows)
    else:
        index = np.where(steps[:, None] < lengths, steps[:, None] + starts, rows)
    if left and not batch_first:
        index = np.ascontiguousarray(index.T)
    padded = gather(source, from_numpy(index.reshape(-1)), fill if rows < index.size or fill != 0 else None)
    return padded.view(*index.shape, *source.shape[1:])


class _Padding(torch.autograd.Function):
    """Padding, with its way back: PyTorch's own goes through a copy of the whole for each sequence."""

    @staticmethod
    def forward(
        ctx: Any, lengths: list[int], longest: int, batch_first: bool, fill: float, left: bool, *sequences: Tensor
    ) -> Tensor:
        ctx.lengths = lengths
        ctx.rest = longest, batch_first, left
        if len(lengths) >= _FEW and _is_short(sequences[0], longest):
            return _laid_out(torch.cat(sequences), lengths, longest, batch_first, fill, left)
        return _kernel(sequences, batch_first, fill, "left" if left else "right")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad,) = grads
        longest, batch_first, left = ctx.rest
        lengths: Index = np.array(ctx.lengths)
        batch = lengths.size
        ends = lengths.cumsum()
        which: Index = np.arange(batch).repeat(lengths)
        steps: Index = np.arange(int(ends[-1])) - (ends - (longest if left else lengths)).repeat(lengths)
        with Undisturbed():
            index = which * longest + steps if batch_first else steps * batch + which
            pieces = split(rows_of(grad.reshape(-1, *grad.shape[2:]), index), ctx.lengths)
        return None, None, None, None, None, *pieces


_apply_padding: Final[Callable[..., Tensor]] = apply_function(None, _Padding)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: Any, padding_value: Any, total_length: Any
) -> tuple[Tensor, Tensor]:
    """As ``torch.nn.utils.rnn.pad_packed_sequence``."""
    result: tuple[Tensor, Tensor] | None = None
    data, batch_sizes, before, back = sequence
    if (
        before is None
        and back is None
        and total_length is None
        and type(data) is Tensor
        and type(batch_sizes) is Tensor
        and not _function_modes()
    ):
        # As in pad_sequence.
        steps = batch_sizes.size(0)
        if steps < _FEW_STEPS or (not data.requires_grad and data.size(0) < steps * 8):
            result = kernel_pad(data, batch_sizes, batch_first, padding_value, steps)
            if CURRENT.get() is not None:
                born_fresh(result)
            return result
    if (
        type(batch_first) is bool
        and type(padding_value) in (int, float)
        and (total_length is None or type(total_length) is int)
        and _is_plain(sequence)
        and unwatched()
    ):
        with Undisturbed():
            result = _padded(sequence, batch_first, padding_value, total_length)
    if result is not None:
        born_fresh(result)
    else:
        check_packed(sequence, "pad_packed_sequence")
        with quietly([member for member in sequence if member is not None]):
            result = rnn.pad_packed_sequence(sequence, batch_first, padding_value, total_length)
        born_tensors(result)
    return result


def _is_plain(packed: PackedSequence) -> bool:
    data, batch_sizes, _, back = packed
    return type(data) in plain_classes and type(batch_sizes) is Tensor and (back is None or type(back) is Tensor)


def _padded(
    packed: PackedSequence, batch_first: bool, fill: float, total_length: int | None
) -> tuple[Tensor, Tensor] | None:
    """None for what PyTorch refuses: it shall say so itself."""
    data, batch_sizes, _, back = packed
    if not is_plain_cpu(data) or not batch_sizes.is_cpu or batch_sizes.dim() != 1 or not (back is None or back.is_cpu):
        return None
    steps = batch_sizes.shape[0]
    time = steps if total_length is None else total_length
    if time < steps:
        return None
    graph = needs_grad((data,))
    if (graph and steps >= _FEW_STEPS) or (not graph and gathers_padded(data, steps, back is None)):
        whole = opened(packed)
        if whole is None or not data.numel():
            return None
        if data.shape[0] == steps == time and fill == 0:
            ones: Index = np.full(1, steps)
            padded = torch.stack((data,), 0 if batch_first else 1)
            return padded if back is None else padded.index_select(0 if batch_first else 1, back), from_numpy(ones)
        padded, lengths = padded_rows(data, batch_sizes, None, back, batch_first, fill, time)
        return padded, lengths if back is None else lengths.index_select(0, back)
    padded, lengths = kernel_pad(data, batch_sizes, batch_first, fill, time)
    if back is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, back), lengths.index_select(0, back)


def opened(packed: PackedSequence) -> tuple[Index, Index | None] | None:
    """Batch sizes, and place of each sequence in the order given; None where the fields do not belong together.

    For fields of plain classes, on the CPU.
    """
    data, batch_sizes, _, back = packed
    if batch_sizes.dtype is not torch.int64 or batch_sizes.dim() != 1:
        return None
    sizes: Index = batch_sizes.numpy()
    if sizes.size == 0 or (sizes[1:] > sizes[:-1]).any() or sizes[-1] <= 0 or int(sizes.sum()) != data.shape[0]:
        return None
    if back is None:
        return sizes, None
    if back.dtype is not torch.int64 or back.dim() != 1:
        return None
    places: Index = back.numpy()
    batch = int(sizes[0])
    if places.size != batch or not _is_permutation(places):
        return None
    return sizes, places


def _is_permutation(places: Index) -> bool:
    if places.size <= _FEW_PLACES:
        return sorted(places.tolist()) == list(range(places.size))
    return bool(places.min() >= 0 and places.max() < places.size and np.bincount(places).max() == 1)


def check_packed(packed: PackedSequence, what: str) -> None:
    """Raise `DeviceMismatchError` where data and indices are on different devices."""
    data, _, before, after = packed
    named_members = [("data", data), ("sorted_indices", before), ("unsorted_indices", after)]
    check_one_device([(name, member) for name, member in named_members if member is not None], what)
