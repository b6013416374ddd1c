"""Moving rows: one gather from the rows of a tensor to the rows of another, forward and backward.

Packing, padding and unpacking move each row of the input to at most one row of the output. The way back moves it to
where it came from, so the backward pass is a gather as well: no accumulation, and no loop over time steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._torch_watch import Undisturbed, needs_grad

__all__ = ["Index", "apply_function", "from_numpy", "gather", "joined", "rows_of", "separate", "split"]

Index = NDArray[np.int64]
from_numpy: Final[Callable[[Index], Tensor]] = cast(Any, torch).from_numpy

# Without the questions of ``Tensor.split``, which is written in Python.
split: Final[Callable[[Tensor, list[int]], tuple[Tensor, ...]]] = cast(Any, torch).split_with_sizes

# What ``Function.apply`` comes to where no transform is on, without its questions whether one is.
apply_function: Final[Callable[..., Any]] = cast(Any, torch)._C._FunctionBase.__dict__["apply"].__get__


def joined(sequences: Any) -> Tensor | None:
    """The rows of sequences in one tensor, with history; None where they do not go together without conversion."""
    first = sequences[0]
    try:
        rows = torch.cat(sequences)
    except (RuntimeError, TypeError, IndexError):
        # PyTorch's own function shall say what is wrong, or make something of it.
        return None
    if rows.dtype is not first.dtype or not rows.is_cpu or rows.layout is not torch.strided:
        return None
    return rows


def rows_of(source: Tensor, index: Index, fill: float | None = None, *, added: bool = False) -> Tensor:
    """The rows of a tensor, in another order.

    Parameters
    ----------
    source : Tensor, shape (length, *)
        A dense tensor on the CPU.
    index : ndarray of int64, shape (rows,)
        For each row of the result, the row it comes from; the number of rows stands for a row of `fill`. No row is
        there twice.
    fill : float, optional
        What the rows that come from nowhere consist of, where there are such.
    added : bool, default False
        Whether the gradient is as if it had been added to zeros, as by most of PyTorch's operations: none of its zeros
        is negative.

    Returns
    -------
    Tensor, shape (rows, *)
        New, with memory of its own.
    """
    if needs_grad((source,)):
        result: Tensor = _apply_rows(source, from_numpy(index), index, fill, added)
        return result
    return gather(source, from_numpy(index), fill)


def gather(source: Tensor, index: Tensor, fill: float | None) -> Tensor:
    """As `rows_of`, without history."""
    if fill is not None:
        source = torch.cat((source, source.new_full((1, *source.shape[1:]), fill)))
    return source.index_select(0, index)


def _inverse_map(index: Index, rows: int) -> tuple[Index, bool]:
    """For each row, where an index takes it to, or one past the end where nowhere; and whether there are such."""
    back = np.full(rows + 1, index.size, dtype=np.int64)
    back[index] = np.arange(index.size)
    back = back[:rows]
    return back, bool((back == index.size).any())


class _Rows(torch.autograd.Function):
    """The gather, with its way back."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Tensor, positions: Index, fill: float | None, added: bool) -> Tensor:
        ctx.added = added
        ctx.rows = source.shape[0]
        ctx.positions = positions
        return gather(source, index, fill)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        with Undisturbed():
            back, lossy = _inverse_map(ctx.positions, ctx.rows)
            grad = grads[0] + 0 if ctx.added else grads[0]
            return rows_of(grad, back, 0.0 if lossy else None), None, None, None, None


def separate(source: Tensor, index: Index, counts: list[int]) -> list[Tensor]:
    """As `rows_of`, cut into pieces of some lengths, each with memory of its own."""
    if needs_grad((source,)):
        pieces: tuple[Tensor, ...] = _apply_pieces(source, index, counts)
        return list(pieces)
    return _cut(source, index, counts)


def _cut(source: Tensor, index: Index, counts: list[int]) -> list[Tensor]:
    return [source.index_select(0, piece) for piece in split(from_numpy(index), counts)]


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
            back, lossy = _inverse_map(ctx.positions, ctx.rows)
            # Added to zeros, as by PyTorch's indexing with a mask.
            return rows_of(torch.cat(grads) + 0, back, 0.0 if lossy else None), None, None


_apply_rows: Final[Callable[..., Tensor]] = apply_function(None, _Rows)
_apply_pieces: Final[Callable[..., tuple[Tensor, ...]]] = apply_function(None, _Pieces)
