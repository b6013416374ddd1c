"""Padding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by the fastest way for each shape."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn

from ..scopes._current import CURRENT
from ..scopes._entry import LIVE
from ..scopes._instruments import LISTENERS
from ..tensors._torch_modes import WATCHES
from ._torch_births import born_fresh, born_tensors
from ._torch_inputs import check_one_device
from ._torch_pack import named
from ._torch_rows import Index, apply_function, from_numpy, gather, joined, rows_of, split
from ._torch_steps import kernel_pad_sequence as _kernel
from ._torch_watch import (
    BelowAutograd,
    Undisturbed,
    fast_dtypes,
    is_plain_cpu,
    only_ours_look_on,
    plain_classes,
    quietly,
    underived,
    unseen,
    unwatched,
)

__all__ = ["pad_plain_sequences", "pad_sequence"]

_function_modes: Final[Callable[[], int]] = cast(Any, torch)._C._len_torch_function_stack
_stack: Final[Callable[..., Tensor]] = torch.stack
_narrow_copy: Final[Callable[[Tensor, int, int, int], Tensor]] = cast(Any, torch).narrow_copy
_strided: Final = torch.strided
_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
_is_cpu: Final[Callable[[Tensor], bool]] = attrgetter("is_cpu")
_NUMBERS: Final = frozenset({int, float})

# Measured; see benchmarks/bench_pack.py.
_FEW: Final = 12
_SHORT: Final = 14_000

# Sequences, layout, fill and side.
_Given = tuple[Any, Any, Any, Any]


def pad_sequence(sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    """As ``torch.nn.utils.rnn.pad_sequence``."""
    if plain_classes.issuperset(map(type, sequences)):
        return pad_plain_sequences(sequences, batch_first, padding_value, padding_side)
    return _padded_by_pytorch(sequences, batch_first, padding_value, padding_side)


def pad_plain_sequences(sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    """As `pad_sequence`, of tensors of plain classes."""
    padded: Tensor | None = None
    # With few sequences PyTorch's kernel takes less than a handful of calls of Python's.
    if not _function_modes() and not WATCHES and not LISTENERS:
        # Within sight, where nothing is made on the way.
        if len(sequences) == 1:
            padded = _padded_alone(sequences, batch_first, padding_value, padding_side)
        else:
            padded = _padded_sequences((sequences, batch_first, padding_value, padding_side))
    elif only_ours_look_on():
        padded = unseen(_padded_sequences, (sequences, batch_first, padding_value, padding_side))
    if padded is None:
        return _padded_by_pytorch(sequences, batch_first, padding_value, padding_side)
    if CURRENT.get() is not None and id(padded) not in LIVE:
        born_fresh((padded,))
    return padded


def _padded_by_pytorch(sequences: Any, batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    check_one_device(named(sequences), "pad_sequence")
    with quietly(sequences):
        padded = rnn.pad_sequence(sequences, batch_first, padding_value, padding_side)
    born_tensors(padded)
    return padded


def _padded_alone(sequences: Any, batch_first: Any, fill: Any, side: Any) -> Tensor | None:
    """Of one sequence. None where it is not on the CPU."""
    sequence = sequences[0]
    if not sequence.is_cpu:
        return None
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
    return _kernel(sequences, batch_first, fill, side)


def _padded_sequences(given: _Given) -> Tensor | None:
    """None where they are not all on the CPU, or there are none."""
    sequences, batch_first, fill, side = given
    graph = False
    sequence = None
    enabled = _grad_enabled()
    for sequence in sequences:
        if not sequence.is_cpu:
            return None
        if enabled and sequence.requires_grad:
            graph = True
            break
    if sequence is None:
        return None
    if len(sequences) == 1:
        return _padded_alone(sequences, batch_first, fill, side)
    if graph:
        padded = unseen(_padded_with_graph, given)
        if padded is not None or not all(map(_is_cpu, sequences)):
            return padded
    elif len(sequences) >= _FEW:
        padded = unseen(_gathered_padding, given)
        if padded is not None:
            return padded
    if graph or not unwatched():
        return _kernel(sequences, batch_first, fill, side)
    try:
        with BelowAutograd():
            return _kernel(sequences, batch_first, fill, side)
    except (IndexError, RuntimeError, TypeError, ValueError):
        # What is refused down there, and what it says, shall be as where PyTorch's own function is called.
        return _kernel(sequences, batch_first, fill, side)


def _is_usual(first: Tensor, batch_first: Any, fill: Any, side: Any) -> bool:
    """Whether what PyTorch's function is given is of the types that it names, and nobody looks on."""
    return (
        type(batch_first) is bool
        and type(fill) in _NUMBERS
        and (side == "right" or side == "left")
        and is_plain_cpu(first)
        and unwatched()
    )


def _padded_with_graph(given: _Given) -> Tensor | None:
    """None where PyTorch's kernel shall say what is wrong, or broadcast, or convert."""
    sequences, batch_first, fill, side = given
    first = sequences[0]
    if not _is_usual(first, batch_first, fill, side):
        return None
    dtype = first.dtype
    axes = first.dim()
    lengths: list[int] = []
    try:
        # Of as many axes, and rows of as many elements: what could be broadcast to such a shape is of that shape.
        row = first.numel() // first.shape[0]
        for sequence in sequences:
            length = sequence.shape[0]
            if (
                sequence.numel() != length * row
                or sequence.dim() != axes
                or sequence.dtype is not dtype
                or not sequence.is_cpu
            ):
                return None
            lengths.append(length)
    except (IndexError, RuntimeError, ZeroDivisionError):
        return None
    longest = max(lengths)
    shortest = min(lengths)
    if shortest < 1 or not row:
        return None
    alike = shortest == longest and fill == 0
    if alike or len(lengths) >= _FEW:
        # Here they are not broadcast, but joined.
        trailing = first.shape[1:]
        if any([sequence.shape[1:] != trailing for sequence in sequences]):  # noqa: C419  # a list is faster
            return None
    if alike:
        stacked = _stack(sequences, 0 if batch_first else 1)
        return stacked if stacked.layout is _strided else None
    padded: Tensor = _apply_padding((lengths, longest, batch_first, float(fill), side == "left"), *sequences)
    return padded


def _gathered_padding(given: _Given) -> Tensor | None:
    """Without history. None where PyTorch's kernel is faster, or shall say what is wrong."""
    sequences, batch_first, fill, side = given
    first = sequences[0]
    if not _is_usual(first, batch_first, fill, side) or not first.numel():
        return None
    shape = first.shape
    try:
        # Three of them tell what is worth asking of all.
        some = shape[0], sequences[len(sequences) // 2].shape[0], sequences[-1].shape[0]
        alike = some[0] == some[1] == some[2]
        if not alike and not _is_short(first, max(some)):
            return None
        shapes = [sequence.shape for sequence in sequences]
        if alike and fill == 0 and shapes.count(shape) == len(shapes):
            stacked = _stack(sequences, 0 if batch_first else 1)
            return stacked if stacked.dtype is first.dtype and stacked.layout is _strided else None
        lengths = [shape[0] for shape in shapes]
    except (IndexError, RuntimeError):
        return None
    longest = max(lengths)
    if min(lengths) < 1 or not _is_short(first, longest):
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


# Lengths, the longest, layout, fill, and whether it goes to the left.
_Options = tuple[list[int], int, bool, float, bool]


class _Padding(torch.autograd.Function):
    """Padding, with its way back: PyTorch's own goes through a copy of the whole for each sequence."""

    @staticmethod
    def forward(ctx: Any, options: _Options, *sequences: Tensor) -> Tensor:
        ctx.options = options
        lengths, longest, batch_first, fill, left = options
        if len(lengths) >= _FEW and _is_short(sequences[0], longest):
            return _laid_out(torch.cat(sequences), lengths, longest, batch_first, fill, left)
        if not underived():
            return _kernel(sequences, batch_first, fill, "left" if left else "right")
        with BelowAutograd():
            return _kernel(sequences, batch_first, fill, "left" if left else "right")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad,) = grads
        given, longest, batch_first, _, left = ctx.options
        if len(given) < _FEW:
            with Undisturbed():
                rows = grad.unbind(0 if batch_first else 1)
                pairs = zip(rows, given, strict=True)
                return None, *[_narrow_copy(row, 0, longest - n if left else 0, n) for row, n in pairs]
        lengths: Index = np.array(given)
        batch = lengths.size
        ends = lengths.cumsum()
        which: Index = np.arange(batch).repeat(lengths)
        steps: Index = np.arange(int(ends[-1])) - (ends - (longest if left else lengths)).repeat(lengths)
        with Undisturbed():
            index = which * longest + steps if batch_first else steps * batch + which
            pieces = split(rows_of(grad.reshape(-1, *grad.shape[2:]), index), given)
        return None, *pieces


_apply_padding: Final[Callable[..., Tensor]] = apply_function(None, _Padding)
