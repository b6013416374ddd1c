"""Moving rows: one gather from the rows of some tensors to the rows of another, forward and backward.

Packing, padding and unpacking move each row of the input to at most one row of the output. The way back moves it to
where it came from, so the backward pass is a gather as well: no accumulation, and no loop over time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..tensors._torch_births import MODE

__all__ = [
    "Index",
    "Undisturbed",
    "can_gather",
    "fast_dtypes",
    "gather",
    "inverse_map",
    "is_wide",
    "needs_grad",
    "quietly",
    "rows_of",
    "separate",
]

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_forward_ad: Final[Any] = torch.autograd.forward_ad

Undisturbed: Final[Any] = _C.DisableTorchFunction
"""Inside of this nobody sees what is made on the way: what comes out is born as a whole."""

Index = NDArray[np.int64]
from_numpy: Final[Callable[[Index], Tensor]] = cast(Any, torch).from_numpy

fast_dtypes: Final = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip
_WIDE: Final = 128
"""Bytes."""

_PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})


def can_gather(tensors: Sequence[Tensor]) -> bool:
    """Whether rows of these tensors may be moved here: dense ones of one layout on the CPU, and nobody who looks on.

    Under a mode or a transform of PyTorch's, while a graph is traced, and for classes that define operations of their
    own, PyTorch's functions must be called themselves.
    """
    first = tensors[0]
    if (
        _C._len_torch_dispatch_stack()
        or _strangers_look_on()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
        or _forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
        or type(first) not in _PLAIN
    ):
        return False
    with Undisturbed():
        dtype = first.dtype
        if dtype not in fast_dtypes or first.layout is not torch.strided or first.is_nested or first.dim() == 0:
            return False
        trailing = first.shape[1:]
        if len(tensors) > 1 and not (
            set(map(type, tensors)) <= _PLAIN
            and {tensor.dtype for tensor in tensors} == {dtype}
            and {tensor.shape[1:] for tensor in tensors} == {trailing}
            and {tensor.layout for tensor in tensors} == {torch.strided}
            and all(tensor.is_cpu for tensor in tensors)
            and all(map(len, (tensor.shape for tensor in tensors)))
            and not any(tensor.is_nested for tensor in tensors)
        ):
            return False
        if not first.is_cpu:
            return False
    return 0 not in trailing


def _strangers_look_on() -> bool:
    """Whether a function mode other than this library's is on: it shall see PyTorch's functions called."""
    depth: int = _C._len_torch_function_stack()
    return depth > 1 or (depth == 1 and _C._get_function_stack_at(0) is not MODE)


def rows_of(tensors: Sequence[Tensor], index: Index, fill: float | None = None) -> Tensor:
    """The rows of some tensors, taken together, in another order.

    Parameters
    ----------
    tensors : sequence of Tensor, each of shape (length, *)
        Those that `can_gather` says yes to.
    index : ndarray of int64, shape (rows,)
        For each row of the result, the row it comes from; the number of rows stands for a row of `fill`. No row is
        there twice.
    fill : float, optional
        What the rows that come from nowhere consist of, where there are such.

    Returns
    -------
    Tensor, shape (rows, *)
        New, with memory of its own.
    """
    if needs_grad(tensors):
        source = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
        if source.requires_grad:
            result: Tensor = _apply_rows(source, from_numpy(index), index, fill)
            return result
        tensors = [source]
    return gather(tensors, from_numpy(index), fill)


def gather(tensors: Sequence[Tensor], index: Tensor, fill: float | None) -> Tensor:
    """As `rows_of`, without history."""
    parts = list(tensors)
    if fill is not None:
        parts.append(parts[0].new_full((1, *parts[0].shape[1:]), fill))
    source = parts[0] if len(parts) == 1 else torch.cat(parts)
    return source.index_select(0, index)


def quietly(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Around a call of PyTorch's own function: nothing on the way is born, unless somebody else shall see it."""
    ours = set(map(type, tensors)) <= _PLAIN and not _strangers_look_on()
    return Undisturbed() if ours and not torch.compiler.is_compiling() else nullcontext()


def needs_grad(tensors: Sequence[Tensor]) -> bool:
    """Whether what is made of some tensors has a history."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def is_wide(tensor: Tensor) -> bool:
    """Whether rows are wide enough to be worth a gather: PyTorch's own way with narrow ones is as fast."""
    return tensor[0].numel() * tensor.element_size() >= _WIDE


def inverse_map(index: Index, rows: int) -> tuple[Index, bool]:
    """For each row, where an index takes it to, or one past the end where nowhere; and whether there are such."""
    back = np.full(rows + 1, index.size, dtype=np.int64)
    back[index] = np.arange(index.size)
    back = back[:rows]
    return back, bool((back == index.size).any())


class _Rows(torch.autograd.Function):
    """The gather, with its way back."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Tensor, positions: Index, fill: float | None) -> Tensor:
        ctx.rows = source.shape[0]
        ctx.positions = positions
        return gather([source], index, fill)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        with Undisturbed():
            back, lossy = inverse_map(ctx.positions, ctx.rows)
            return rows_of([grads[0]], back, 0.0 if lossy else None), None, None, None


def separate(tensors: Sequence[Tensor], index: Index, counts: list[int]) -> list[Tensor]:
    """As `rows_of`, cut into pieces of some lengths, each with memory of its own."""
    (source,) = tensors
    if needs_grad([source]):
        pieces: tuple[Tensor, ...] = _apply_pieces(source, index, counts)
        return list(pieces)
    return _cut(source, index, counts)


def _cut(source: Tensor, index: Index, counts: list[int]) -> list[Tensor]:
    rows = source.index_select(0, from_numpy(index))
    return [piece.clone() for piece in torch.split(rows, counts)]


class _Pieces(torch.autograd.Function):
    """The gather in pieces, with its way back: one node for all, as one for each would fill a whole gradient each."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Index, counts: list[int]) -> tuple[Tensor, ...]:
        ctx.rows = source.shape[0]
        ctx.positions = index
        return tuple(_cut(source, index, counts))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        with Undisturbed():
            back, lossy = inverse_map(ctx.positions, ctx.rows)
            return rows_of(list(grads), back, 0.0 if lossy else None), None, None


_apply_rows: Final[Callable[..., Tensor]] = cast(Any, _Rows).apply
_apply_pieces: Final[Callable[..., tuple[Tensor, ...]]] = cast(Any, _Pieces).apply
