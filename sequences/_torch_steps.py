"""Between a padded batch of PyTorch's and the rows of a packed one, there and back: each is the other's gradient.

PyTorch's own kernels go from one length to the next: they are the fastest where there are few lengths, or much to move
for each. Otherwise it is one gather. Their gradients go step by step (packing) or copy the whole batch for each length
(padding); here the way back of the one is the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from ._layout import batch_sizes_of, inverse_of, steps_of
from ._torch_rows import Index, apply_function, from_numpy, gather
from ._torch_watch import BelowAutograd, Undisturbed, needs_grad, underived

__all__ = [
    "gathered_rows",
    "gathers_packed",
    "gathers_padded",
    "gathers_with_graph",
    "kernel_pack",
    "kernel_pad",
    "kernel_pad_sequence",
    "kernel_pad_with_graph",
    "packed_rows",
    "packed_with_graph",
    "padded_rows",
]

_VF: Final[Any] = torch._VF
kernel_pack: Final[Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]]] = _VF._pack_padded_sequence
"""PyTorch's kernel: data and batch sizes of a padded batch, given lengths in descending order."""
kernel_pad_with_graph: Final[Callable[[Tensor, Tensor, bool, float, int], tuple[Tensor, Tensor]]] = (
    _VF._pad_packed_sequence
)
"""PyTorch's kernel: the padded batch in order of descending length, and these lengths."""

kernel_pad_sequence: Final[Callable[..., Tensor]] = cast(Any, torch)._C._nn.pad_sequence
"""PyTorch's kernel: the padded batch of sequences."""

# Measured; see benchmarks/bench_pack.py.
_MANY: Final = 16
_FEW_STEPS: Final = 8
_BACK_STEPS: Final = 16
_MANY_STEPS: Final = 64
_NARROW: Final = 32
_WIDE: Final = 128
_LARGE: Final = 256 << 10


def packed_rows(
    padded: Tensor, lengths: Tensor, order: Tensor | None, back: Tensor | None, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """Data and batch sizes of a padded batch, with history.

    Parameters
    ----------
    padded : Tensor, shape (time, batch, *) or, with `batch_first`, (batch, time, *)
        A dense tensor on the CPU, not empty.
    lengths : Tensor of int64, shape (batch,)
        In descending order, from `time` to 1.
    order, back : Tensor of int64, shape (batch,), optional
        Which sequence each length belongs to, where they are not in order already; and its inverse.
    batch_first : bool
        The layout.
    """
    batch, time = padded.shape[:2] if batch_first else padded.shape[1::-1]
    gathers = gathers_packed(padded, batch, time, order is None, batch_first)
    if needs_grad((padded,)):
        return packed_with_graph(padded, lengths, order, back, batch_first, time, gathers)
    return (gathered_rows if gathers else _packed_by_kernel)(padded, lengths, order, batch_first)


def packed_with_graph(
    padded: Tensor,
    lengths: Tensor,
    order: Tensor | None,
    back: Tensor | None,
    batch_first: bool,
    time: int,
    gathers: bool,
) -> tuple[Tensor, Tensor]:
    """As `packed_rows`, of a batch of `time` steps that needs a graph; by a gather, or by PyTorch's kernel.

    The kernel refuses lengths that are wrong, but for those beyond `time`: there are more batch sizes than steps then.
    """
    # PyTorch looks at each thing it is given: few of them make a shorter call.
    handed: list[Tensor] = []
    data: Tensor = _apply_pack(padded, (lengths, order, back, batch_first, time, gathers, handed))
    return data, handed[0]


def padded_rows(
    data: Tensor,
    batch_sizes: Tensor,
    order: Tensor | None,
    back: Tensor | None,
    batch_first: bool,
    fill: float,
    time: int,
) -> tuple[Tensor, Tensor]:
    """The padded batch of packed data, with history, in the order given; and the lengths, in descending order.

    Parameters
    ----------
    data : Tensor, shape (rows, *)
        A dense tensor on the CPU.
    batch_sizes : Tensor of int64, shape (steps,)
        In descending order, positive, `rows` together.
    order, back : Tensor of int64, shape (batch,), optional
        As for `packed_rows`.
    batch_first : bool
        The layout of the result.
    fill : float
        What fills the rest.
    time : int
        The length of the result, at least that of the longest sequence.
    """
    if needs_grad((data,)):
        handed: list[Tensor] = []
        padded: Tensor = _apply_pad(data, (batch_sizes, order, back, batch_first, fill, time, handed))
        return padded, handed[0]
    return _pad(data, batch_sizes, back, batch_first, fill, time)


def kernel_pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, fill: float, time: int) -> tuple[Tensor, Tensor]:
    """As `kernel_pad_with_graph`, of what needs none."""
    if underived():
        try:
            with BelowAutograd():
                return kernel_pad_with_graph(data, batch_sizes, batch_first, fill, time)
        except (IndexError, RuntimeError, TypeError, ValueError):
            # What is refused, and what is said, shall be as where PyTorch's own function is called.
            pass
    return kernel_pad_with_graph(data, batch_sizes, batch_first, fill, time)


def gathers_packed(padded: Tensor, batch: int, time: int, ordered: bool, batch_first: bool) -> bool:
    """Whether a gather is faster than PyTorch's kernel where a padded batch is packed."""
    if time < _FEW_STEPS or batch == 1:
        return False
    if batch >= _MANY:
        if batch_first or (not ordered and time >= _MANY_STEPS):
            return True
    elif ordered and not batch_first:
        return False
    nbytes = padded.numel() * padded.element_size()
    if ordered and not batch_first:
        return time >= _MANY_STEPS and nbytes >= _WIDE * time * batch
    return nbytes >= _LARGE


def gathers_with_graph(padded: Tensor, time: int, ordered: bool, batch_first: bool) -> bool:
    """Whether that holds for both ways, there and back, where PyTorch's kernel brings a way back of its own."""
    nbytes = padded.numel() * padded.element_size()
    if not ordered:
        return time >= _BACK_STEPS or nbytes >= (_LARGE // 2 if batch_first else 2 * _LARGE)
    return time >= _MANY_STEPS or (time >= _BACK_STEPS and nbytes < 4 * _LARGE)


def gathers_padded(data: Tensor, steps: int, ordered: bool) -> bool:
    """Whether a gather is faster than PyTorch's kernel where packed data is padded."""
    # The kernel is to bring its result into another order afterwards, and that takes more than to find each row.
    if ordered or steps < _FEW_STEPS:
        return False
    rows = data.shape[0]
    return rows >= steps * (_MANY // 2) and data.numel() * data.element_size() >= rows * _NARROW


def _packed_by_kernel(
    padded: Tensor, lengths: Tensor, order: Tensor | None, batch_first: bool
) -> tuple[Tensor, Tensor]:
    if order is not None:
        padded = padded.index_select(0 if batch_first else 1, order)
    return kernel_pack(padded, lengths, batch_first)


def gathered_rows(padded: Tensor, lengths: Tensor, order: Tensor | None, batch_first: bool) -> tuple[Tensor, Tensor]:
    """As `packed_rows`, by a gather, without history."""
    batch, time = padded.shape[:2] if batch_first else padded.shape[1::-1]
    batch_sizes = batch_sizes_of(lengths.numpy())
    _, times, ranks = steps_of(batch_sizes)
    if order is not None:
        ranks = order.numpy()[ranks]
    # Rows lie one after another along one of the two axes, or they are brought into that order first.
    transposed = padded.transpose(0, 1)
    flipped = not padded.is_contiguous() and transposed.is_contiguous()
    rows = (transposed if flipped else padded).flatten(0, 1)
    index = ranks * time + times if batch_first != flipped else times * batch + ranks
    return rows.index_select(0, from_numpy(index)), from_numpy(batch_sizes)


def _pad(
    data: Tensor, batch_sizes: Tensor, back: Tensor | None, batch_first: bool, fill: float, time: int
) -> tuple[Tensor, Tensor]:
    steps = batch_sizes.shape[0]
    if not gathers_padded(data, steps, back is None):
        padded, lengths = kernel_pad(data.contiguous(), batch_sizes, batch_first, fill, time)
        return padded if back is None else padded.index_select(0 if batch_first else 1, back), lengths
    sizes: Index = batch_sizes.numpy()
    batch = int(sizes[0])
    counts = batch_sizes_of(sizes)
    rows = data.shape[0]
    starts = sizes.cumsum() - sizes
    if time > steps:
        starts = np.concatenate([starts, np.zeros(time - steps, dtype=np.int64)])
    if back is None:
        places, lengths_here = np.arange(batch), counts
    else:
        places = back.numpy()
        lengths_here = counts[places]
    moments = np.arange(time)
    if batch_first:
        index = np.where(moments < lengths_here[:, None], starts + places[:, None], rows)
    else:
        index = np.where(moments[:, None] < lengths_here, starts[:, None] + places, rows)
    padded = gather(data, from_numpy(index.reshape(-1)), fill if rows < index.size or fill != 0 else None)
    return padded.view(*index.shape, *data.shape[1:]), from_numpy(counts)


def _added(grad: Tensor, added: bool) -> Tensor:
    """A gradient as if it had been added to zeros, as PyTorch's indexing adds it: none of its zeros is negative."""
    return grad + 0 if added else grad


# Lengths, order, its inverse, layout, steps, whether by a gather, and where the batch sizes go.
_Packing = tuple[Tensor, "Tensor | None", "Tensor | None", bool, int, bool, list[Tensor]]


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, rest: _Packing) -> Tensor:
        lengths, order, back, batch_first, time, gathers, handed = rest
        if gathers:
            data, batch_sizes = gathered_rows(padded, lengths, order, batch_first)
        else:
            if order is not None:
                padded = padded.index_select(0 if batch_first else 1, order)
            data, batch_sizes = kernel_pack(padded, lengths, batch_first)
        # By PyTorch, because the handles that are handed out may be disposed before the way back is gone.
        ctx.save_for_backward(batch_sizes, order, back)
        ctx.rest = batch_first, time
        handed.append(batch_sizes)
        return data

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        batch_sizes, order, back = ctx.saved_tensors
        batch_first, time = ctx.rest
        with Undisturbed():
            # Step after step, which is how the rows lie, whatever the layout: a view of that is no worse a gradient.
            padded, _ = padded_rows(_added(grads[0], order is not None), batch_sizes, order, back, False, 0.0, time)
            if batch_first:
                padded = padded.transpose(0, 1)
        return padded, None


# Batch sizes, order, its inverse, layout, fill, steps, and where the lengths go.
_Padding = tuple[Tensor, "Tensor | None", "Tensor | None", bool, float, int, list[Tensor]]


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, rest: _Padding) -> Tensor:
        batch_sizes, order, back, batch_first, fill, time, handed = rest
        padded, lengths = _pad(data, batch_sizes, back, batch_first, fill, time)
        ctx.save_for_backward(order, back)
        # Copied: PyTorch's own way back does not ask for them, so that they may be changed.
        ctx.rest = batch_sizes.numpy().copy(), batch_first
        handed.append(lengths)
        return padded

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        order, back = ctx.saved_tensors
        sizes, batch_first = ctx.rest
        if back is not None and order is None:
            order = from_numpy(inverse_of(back.numpy()))
        with Undisturbed():
            # PyTorch adds what comes back from the copy for each length.
            added = back is not None or bool(sizes[0] != sizes[-1])
            lengths = from_numpy(batch_sizes_of(sizes))
            data, _ = packed_rows(_added(grads[0], added), lengths, order, back, batch_first)
        return data, None


_apply_pack: Final[Callable[..., Tensor]] = apply_function(None, _Pack)
_apply_pad: Final[Callable[..., Tensor]] = apply_function(None, _Pad)
