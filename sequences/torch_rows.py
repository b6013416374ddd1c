"""Moving rows between tensors, forward and backward, which packing and padding are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..scopes.listeners import LISTENERS
from ..tensors.torch.births import MODE, WATCHES
from ..tensors.torch.extension import TORCH_COMPILED
from .inputs import batch_sizes_of, inverse_of, steps_of

__all__ = [
    "BelowAutograd",
    "Index",
    "Undisturbed",
    "apply_function",
    "aside",
    "fast_dtypes",
    "from_numpy",
    "gather",
    "gathered_rows",
    "gathers_packed",
    "gathers_padded",
    "gathers_with_graph",
    "is_plain_cpu",
    "joined",
    "kernel_pack",
    "kernel_pad",
    "kernel_pad_sequence",
    "kernel_pad_with_graph",
    "needs_grad",
    "only_ours_look_on",
    "packed_rows",
    "packed_with_graph",
    "padded_rows",
    "plain_classes",
    "quietly",
    "rows_of",
    "separate",
    "split",
    "underived",
    "unseen",
    "unwatched",
]

# Whether anybody looks on while PyTorch's tensors are packed and padded, and whether a graph is
# wanted.


Given = TypeVar("Given")
Made = TypeVar("Made")

_C: Final[Any] = torch._C
_forward_ad: Final[Any] = torch.autograd.forward_ad
_function_modes: Final[Callable[[], int]] = _C._len_torch_function_stack
_function_mode_at: Final[Callable[[int], Any]] = _C._get_function_stack_at
_dispatch_modes: Final[Callable[[], int]] = _C._len_torch_dispatch_stack
_transform: Final[Callable[[], Any]] = _C._functorch.peek_interpreter_stack
_tracing: Final[Callable[[], Any]] = _C._get_tracing_state
_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
_is_compiling: Final[Callable[[], bool]] = torch.compiler.is_compiling

Undisturbed: Final[Any] = _C.DisableTorchFunction
"""Inside of this nobody sees what is made on the way: what comes out is born as a whole."""

BelowAutograd: Final[Any] = _C._AutoDispatchBelowADInplaceOrView
"""Inside of this no graph is made, and no view of what is made on the way is known as one.

PyTorch's kernels that consist of a handful of its other operators take three quarters of their time here, where those
do not each look for a graph; a single operator saves less than it takes to come and go. Only where there is
nothing to derive: see `underived`, and `needs_grad`.
"""

plain_classes: Final = frozenset({Tensor, torch.nn.Parameter})
"""Classes whose tensors behave as PyTorch's own."""

fast_dtypes: Final = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip


def only_ours_look_on() -> bool:
    """Whether nobody but this library sees functions called: a mode, or a leak detector, shall see PyTorch's own."""
    depth = _function_modes()
    return not WATCHES and (not depth or (depth == 1 and _function_mode_at(0) is MODE))


def unwatched() -> bool:
    """Whether tensors may be moved here by other calls than PyTorch's own functions make.

    Under a leak detector, a mode or a transform, while a graph is traced, and while derivatives go forward,
    PyTorch's functions must be called themselves.
    """
    depth = _function_modes()
    return (
        not WATCHES
        and (not depth or (depth == 1 and _function_mode_at(0) is MODE))
        and not _dispatch_modes()
        and _transform() is None
        and _tracing() is None
        and _forward_ad._current_level < 0
        and not _is_compiling()
    )


def _called(function: Callable[[Any], Any], given: Any) -> Any:
    return function(given)


_unborn: Final[Callable[[Callable[[Any], Any], Any], Any]] = (
    _called if TORCH_COMPILED is None else TORCH_COMPILED.unborn
)


def unseen(function: Callable[[Given], Made], given: Given) -> Made:
    """What a function makes of what it is given. Nobody sees what it makes on the way: what comes out is born whole."""
    if _function_modes() or LISTENERS:
        with Undisturbed():
            return function(given)
    if _is_compiling():
        return function(given)
    # Without a mode only this library sees births, where it is compiled.
    made: Made = _unborn(function, given)
    return made


def _not_known(function: Callable[[Any], Any], given: Any) -> Any:
    return NotImplemented


_alone: Callable[[Callable[[Any], Any], Any], Any] = _not_known
if TORCH_COMPILED is not None:
    TORCH_COMPILED.bind_alone(
        {"LISTENERS": LISTENERS, "WATCHES": WATCHES, "forward_ad": vars(_forward_ad), "transform": _transform}
    )
    _alone = TORCH_COMPILED.alone


def aside(function: Callable[[Given], Made], given: Given) -> Made | None:
    """As `unseen`; None where somebody looks on: see `unwatched`."""
    if not _is_compiling():
        made = _alone(function, given)
        if made is not NotImplemented:
            known: Made = made
            return known
        if unwatched():
            return unseen(function, given)
    return None


def underived() -> bool:
    """Whether derivatives are made by graphs alone: neither by a transform of PyTorch's, nor forward."""
    return _transform() is None and _forward_ad._current_level < 0


def is_plain_cpu(tensor: Tensor) -> bool:
    """Whether a tensor of a plain class is dense, on the CPU, of a common dtype, and has a first axis."""
    return (
        tensor.is_cpu
        and tensor.dtype in fast_dtypes
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.dim() > 0
    )


def needs_grad(tensors: Iterable[Tensor]) -> bool:
    """Whether what is made of some tensors has a history."""
    return _grad_enabled() and any([tensor.requires_grad for tensor in tensors])  # noqa: C419  # a list is faster


def quietly(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Around a call of PyTorch's own function: nothing on the way is born, unless somebody else shall see it."""
    ours = plain_classes.issuperset(map(type, tensors)) and only_ours_look_on()
    return Undisturbed() if ours and not torch.compiler.is_compiling() else nullcontext()


# Moving rows: one gather from the rows of a tensor to the rows of another, forward and backward.
#
# Packing, padding and unpacking move each row of the input to at most one row of the output. The
# way back moves it to where it came from, so the backward pass is a gather as well: no
# accumulation, and no loop over time steps.


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

# Between a padded batch of PyTorch's and the rows of a packed one, there and back: each is the
# other's gradient.
#
# PyTorch's own kernels go from one length to the next: they are the fastest where there are few
# lengths, or much to move for each. Otherwise it is one gather. Their gradients go step by step
# (packing) or copy the whole batch for each length (padding); here the way back of the one is the
# other.


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
