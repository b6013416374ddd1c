"""PyTorch's tensors: packed sequences as resources, and the sequence functions, which return what PyTorch's return.

Imports PyTorch, so that it is imported where the program has done so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..scopes.composites import compose
from ..scopes.errors import DeviceMismatchError
from ..scopes.identity import LIVE
from ..scopes.kinds import Kind, device_name
from ..scopes.ownership import born, born_together, born_whole
from ..tensors.arena.budgets import BUDGETED
from ..tensors.tensor.tensor import Tensor as OwnTensor
from ..tensors.torch.adapter import KIND as TENSOR
from ..tensors.torch.births import MODE, SEAM, births_now
from ..tensors.torch.storages import refusal_of
from .compiled import BATCH_FIRST, LEFT, PACKED, SEQUENCES, TIME_FIRST, count_above, invert_permutation, move_rows

__all__ = [
    "TORCH_PACKED_SEQUENCE",
    "check_whole",
    "pack_padded_sequence",
    "pack_sequence",
    "packed",
    "pad_packed_sequence",
    "pad_sequence",
    "see_births",
    "stacked",
    "tensor_of",
    "trailing_shapes",
    "unpack_sequence",
    "unpad_sequence",
]

P = ParamSpec("P")
R = TypeVar("R")
Born = TypeVar("Born", bound=tuple[Tensor, ...])

# ``torch.nn.utils.rnn.PackedSequence`` as a kind of resource: a composite of its tensors.
#
# It is a tuple, which cannot be weakly referenced, and it is rebuilt at every turn (``to``,
# ``pin_memory``, a trip through a queue). So its data stands for it: whoever holds the data tensor
# in a packed sequence holds the same resource.
#
# Whoever makes one, PyTorch's functions and modules, ``copy``, ``pickle`` or the user, comes
# through one of the two constructors of its class: ``__new__``, or ``_make``, to which ``_replace``
# and ``torch.compile`` come. Both tell the scopes of what they have made. What protocols 0 and 1 of
# ``pickle`` make by ``tuple.__new__`` is known as soon as a verb meets it.


_FIELDS: Final = PackedSequence._fields


_data: Final[Callable[[PackedSequence], Tensor]] = itemgetter(0)


def _members(packed: PackedSequence) -> dict[str, object]:
    return {name: member for name, member in zip(_FIELDS, packed, strict=True) if member is not None}


def _release(packed: PackedSequence) -> None:
    """It is the sum of its members."""


def _no_storages(packed: PackedSequence) -> tuple[()]:
    return ()


def _is_disposed(packed: PackedSequence) -> bool:
    return TENSOR.is_disposed is not None and TENSOR.is_disposed(packed[0])


def _device(packed: PackedSequence) -> object:
    return TENSOR.device(packed[0])


def _describe(packed: PackedSequence) -> str:
    return f"torch PackedSequence of {TENSOR.describe(packed[0])}"


TORCH_PACKED_SEQUENCE: Final = Kind(
    cls=PackedSequence,
    name="torch.nn.utils.rnn.PackedSequence",
    release=_release,
    storages=_no_storages,
    device=_device,
    describe=_describe,
    members=_members,
    is_disposed=_is_disposed,
    anchor=_data,
    # PyTorch reads them on the CPU: see the notes on its class.
    host_members=frozenset({"batch_sizes"}),
)
"""The kind of PyTorch's packed sequences."""


def see_births() -> None:
    """See packed sequences made from now on, on every thread."""
    cls: Any = PackedSequence
    cls.__new__ = staticmethod(_telling(cls.__new__))
    cls._make = classmethod(_telling(cls._make.__func__))


def _telling(construct: Callable[..., PackedSequence]) -> Callable[..., PackedSequence]:
    """The same constructor, which tells the scopes of what it has made."""

    @functools.wraps(construct)
    def constructed(cls: type[PackedSequence], *args: Any, **kwargs: Any) -> PackedSequence:
        packed = construct(cls, *args, **kwargs)
        # Dynamo traces through here, and takes the test for a constant.
        if not torch.compiler.is_compiling() and id(packed[0]) in LIVE:
            compose(packed, TORCH_PACKED_SEQUENCE)
        return packed

    return constructed


def check_whole(packed: PackedSequence, what: str) -> None:
    """Raise `ValueError` where the fields of a packed sequence cannot belong together.

    ``default_collate`` takes packed sequences for tuples and stacks their fields, which makes one
    that looks whole.
    """
    data, batch_sizes = packed[0], packed[1]
    if not _is_disposed(packed) and batch_sizes.dim() != 1:
        raise ValueError(
            f"{what}: the batch has a PackedSequence whose batch_sizes has shape {tuple(batch_sizes.shape)} and data "
            f"{tuple(data.shape)}: the fields of packed sequences were stacked, as default_collate does it, which "
            "makes no packed sequence. Let the dataset give the sequences themselves, and pack_collate() pack them"
        )


# Packing, padding and unpacking PyTorch's tensors.
#
# PyTorch's functions go step by step or length by length, and so do their gradients. Here rows are
# moved once, there and back, where all tensors are plain memory of the CPU and nobody follows which
# operations run. Whatever else is given, and whatever PyTorch refuses, goes to PyTorch's function,
# and so does what consists of few sequences or steps: that takes it less time than the checks here.

_FEW: Final = 12
"""Measured: see ``benchmarks/bench_pack.py``."""

_C: Final[Any] = torch._C
_forward_ad: Final[Any] = torch.autograd.forward_ad
_add_to_each: Final[Any] = vars(torch)["_foreach_add_"]
_classes: Final = frozenset({Tensor, torch.nn.Parameter})
_dtypes: Final = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip


def _is_unobserved() -> bool:
    """Whether nobody but a scope follows operations: no compiler, detector, mode, transform, trace, or dual level."""
    if torch.compiler.is_compiling():
        return False
    modes: int = _C._len_torch_function_stack()
    return bool(
        (modes == 0 or (modes == 1 and _C._get_function_stack_at(0) is MODE))
        and SEAM.detector is None
        and not _C._len_torch_dispatch_stack()
        and _C._functorch.peek_interpreter_stack() is None
        and _C._get_tracing_state() is None
        and _forward_ad._current_level < 0
    )


def _try(tensors: Iterable[Any], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call a function that moves rows of some tensors; None where PyTorch's own function is to be called.

    What is made on the way is no birth.
    """
    if _is_unobserved() and _classes.issuperset(map(type, tensors)):
        try:
            with _C.DisableTorchFunction():
                return function(*args, **kwargs)
        except (IndexError, OverflowError, RuntimeError, TypeError, ValueError):
            # PyTorch says what is wrong, or makes something of it.
            pass
    return None


def _needs_graph(tensors: Iterable[Tensor]) -> bool:
    return torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors])  # noqa: C419  # a list is faster


class _Move(NamedTuple):
    """A move of rows: layouts, lengths and order as for `move_rows`.

    `adds` tells whether PyTorch adds the gradient to zeros, so that none of its zeros is negative.
    `by_pytorch` makes the same of sources by PyTorch's function, given lengths and order as well:
    for gradients that this move does not fit.
    """

    to: int
    layout: int
    lengths: Tensor
    order: Tensor | None
    row_nbytes: int
    adds: bool
    by_pytorch: Callable[[list[Tensor], Tensor, Tensor | None], Any]

    def make(self, sources: tuple[Tensor, ...], shapes: list[Any], fill: Tensor | None = None) -> tuple[Tensor, ...]:
        """Tensors of some shapes with the rows of the sources, with a graph where one is wanted."""
        if _needs_graph(sources):
            # Own copies: the ones given are handed out, and may be changed or disposed.
            order = None if self.order is None else self.order.clone()
            own = self._replace(lengths=self.lengths.clone(), order=order)
            made: tuple[Tensor, ...] = cast(Any, _Moved).apply(own, shapes, fill, *sources)
            return made
        return self.make_without_graph(sources, shapes, fill)

    def make_without_graph(
        self, sources: tuple[Tensor, ...], shapes: list[Any], fill: Tensor | None
    ) -> tuple[Tensor, ...]:
        """As `make`, without a graph."""
        made = tuple([torch.empty(shape, dtype=sources[0].dtype) for shape in shapes])
        move_rows(made, self.to, sources, self.layout, self.lengths, self.order, self.row_nbytes, fill)
        return made

    def make_back(self, grads: tuple[Tensor, ...], shapes: list[Any]) -> tuple[Tensor, ...]:
        """The gradients of sources of some shapes."""
        if _needs_graph(grads):
            raise ValueError("a graph of the gradient is PyTorch's")
        back = self._replace(to=self.layout, layout=self.to)
        made = back.make_without_graph(tuple([grad.contiguous() for grad in grads]), shapes, None)
        if self.adds:
            _add_to_each(made, 0)
        return made

    def make_back_by_pytorch(self, grads: tuple[Tensor, ...], shapes: list[Any]) -> tuple[Tensor, ...]:
        """As `make_back`, whatever the gradients are."""
        is_differentiable = torch.is_grad_enabled()
        with torch.enable_grad():
            sources = [torch.zeros(shape, dtype=grads[0].dtype, requires_grad=True) for shape in shapes]
            made = self.by_pytorch(sources, self.lengths, self.order)
            return torch.autograd.grad(made, sources, grads, create_graph=is_differentiable)


class _Moved(torch.autograd.Function):
    """A move with its gradient, which is the move back."""

    @staticmethod
    def forward(ctx: Any, move: _Move, shapes: list[Any], fill: Tensor | None, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.move = move
        ctx.shapes = [source.shape for source in sources]
        return move.make_without_graph(sources, shapes, fill)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        move: _Move = ctx.move
        made = _try(grads, move.make_back, grads, ctx.shapes)
        return None, None, None, *(move.make_back_by_pytorch(grads, ctx.shapes) if made is None else made)


def _lengths_of(sequences: list[Tensor]) -> list[int]:
    """The lengths of sequences that are alike otherwise.

    Raises
    ------
    ValueError
        They are not, or of an unusual dtype.
    """
    row = sequences[0].shape[1:]
    shapes = [one.shape for one in sequences]
    lengths = [shape[0] for shape in shapes]
    # Rows of as many axes and bytes are alike where there is one axis; the bytes are compared where
    # rows are moved.
    if len(row) < 2 and 0 not in lengths:
        are_alike = all([len(shape) == len(row) + 1 for shape in shapes])  # noqa: C419  # a list is faster
    else:
        are_alike = all([shape[1:] == row for shape in shapes])  # noqa: C419  # likewise
    if not are_alike or len({one.dtype for one in sequences}) > 1:
        raise ValueError("the sequences differ")
    return lengths


def _numbers(tensor: Any) -> list[int]:
    numbers: list[int] = tensor.tolist()
    return numbers


def _row_nbytes(tensor: Tensor, row: tuple[int, ...]) -> int:
    # Asked here, so that nothing is allocated for what will not be moved.
    if tensor.dtype not in _dtypes or not tensor.is_cpu:
        raise ValueError("the dtype or the device is an unusual one")
    return math.prod(row) * tensor.element_size()


def _sorted(lengths: Tensor, enforce_sorted: Any) -> tuple[Tensor, Tensor | None]:
    """Lengths in descending order, and this order where it had to be made: PyTorch's, also of equal lengths."""
    return (lengths, None) if enforce_sorted else torch.sort(lengths, descending=True)


def _inverse(permutation: Tensor | None) -> Tensor | None:
    if permutation is None:
        return None
    inverse = torch.empty_like(permutation)
    invert_permutation(inverse, permutation)
    return inverse


def _upright(padded: Tensor, batch_first: bool) -> tuple[Tensor, int]:
    """A padded batch and its layout: transposed where only that is contiguous."""
    if not padded.is_contiguous() and padded.transpose(0, 1).is_contiguous():
        padded, batch_first = padded.transpose(0, 1), not batch_first
    return padded, BATCH_FIRST if batch_first else TIME_FIRST


def _selected(padded: Tensor, layout: int, order: Tensor | None) -> Tensor:
    return padded if order is None else padded.index_select(0 if layout == BATCH_FIRST else 1, order)


def _packed(data: Tensor, lengths: Tensor, order: Tensor | None, longest: int) -> PackedSequence:
    batch_sizes = torch.empty(longest, dtype=torch.int64)
    count_above(batch_sizes, lengths)
    return PackedSequence(data, batch_sizes, order, _inverse(order))


def pack_sequence(sequences: list[Any], enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_sequence``."""
    packed = _try(sequences, _pack, sequences, enforce_sorted)
    if packed is not None:
        return _born_packed(packed)
    check_one_device(_named(sequences), "pack_sequence")
    return rnn.pack_sequence(sequences, enforce_sorted)


def _pack(sequences: list[Tensor], enforce_sorted: Any) -> PackedSequence | None:
    given = _lengths_of(sequences)
    if min(given) < 1:
        return None
    lengths, order = _sorted(torch.tensor(given), enforce_sorted)
    row = sequences[0].shape[1:]
    move = _Move(PACKED, SEQUENCES, lengths, order, _row_nbytes(sequences[0], row), order is not None, _pack_by_pytorch)
    (data,) = move.make(tuple(sequences), [(sum(given), *row)])
    return _packed(data, lengths, order, max(given))


def _pack_by_pytorch(sources: list[Tensor], lengths: Tensor, order: Tensor | None) -> Tensor:
    return rnn.pack_sequence(sources if order is None else [sources[place] for place in _numbers(order)]).data


def pack_padded_sequence(input: Any, lengths: Any, batch_first: Any, enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_padded_sequence``; lengths may be anything that makes a tensor."""
    if type(lengths) is OwnTensor:
        lengths = torch.as_tensor(lengths.numpy())
    if type(batch_first) is bool:
        given = (input, lengths) if isinstance(lengths, Tensor) else (input,)
        packed = _try(given, _pack_padded, input, lengths, batch_first, enforce_sorted)
        if packed is not None:
            return _born_packed(packed)
    return rnn.pack_padded_sequence(input, lengths, batch_first, enforce_sorted)


def _pack_padded(input: Tensor, lengths: Any, batch_first: bool, enforce_sorted: Any) -> PackedSequence | None:
    # PyTorch goes from one length to the next, and back step by step.
    loops = input.shape[1 if batch_first else 0] if _needs_graph((input,)) else min(input.shape[:2])
    if loops < _FEW and input.is_cpu:
        return rnn.pack_padded_sequence(input, lengths, batch_first, enforce_sorted)
    lengths, order = _sorted(torch.as_tensor(lengths, dtype=torch.int64), enforce_sorted)
    counts = _numbers(lengths)
    padded, layout = _upright(input, batch_first)
    batch, time = padded.shape[:2] if layout == BATCH_FIRST else padded.shape[1::-1]
    if len(counts) != batch or counts[0] > time or counts[-1] < 1:
        return None

    def by_pytorch(sources: list[Tensor], lengths: Tensor, order: Tensor | None) -> Tensor:
        padded = _selected(sources[0], layout, order)
        return rnn.pack_padded_sequence(padded, lengths, layout == BATCH_FIRST).data

    row = padded.shape[2:]
    move = _Move(PACKED, layout, lengths, order, _row_nbytes(padded, row), order is not None, by_pytorch)
    (data,) = move.make((padded,), [(sum(counts), *row)])
    return _packed(data, lengths, order, counts[0])


def pad_sequence(sequences: list[Any], batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    """As ``torch.nn.utils.rnn.pad_sequence``."""
    padded = _try(sequences, _pad, sequences, batch_first, padding_value, padding_side)
    if padded is not None:
        return _born((padded,))[0]
    check_one_device(_named(sequences), "pad_sequence")
    return rnn.pad_sequence(sequences, batch_first, padding_value, padding_side)


def _pad(sequences: list[Tensor], batch_first: Any, fill: Any, side: Any) -> Tensor | None:
    if len(sequences) < _FEW and all([one.is_cpu for one in sequences]):  # noqa: C419  # a list is faster
        return rnn.pad_sequence(sequences, batch_first, fill, side)
    if type(batch_first) is not bool or type(fill) not in (int, float) or side not in ("left", "right"):
        return None
    lengths = _lengths_of(sequences)
    longest, row = max(lengths), sequences[0].shape[1:]

    def by_pytorch(sources: list[Tensor], lengths: Tensor, order: Tensor | None) -> Tensor:
        return rnn.pad_sequence(sources, batch_first, 0.0, side)

    layout = (BATCH_FIRST if batch_first else TIME_FIRST) + (LEFT if side == "left" else 0)
    nbytes = _row_nbytes(sequences[0], row)
    move = _Move(layout, SEQUENCES, torch.tensor(lengths), None, nbytes, False, by_pytorch)
    shape = (len(lengths), longest, *row) if batch_first else (longest, len(lengths), *row)
    return move.make(tuple(sequences), [shape], sequences[0].new_full(row, float(fill)))[0]


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: Any, padding_value: Any, total_length: Any
) -> tuple[Tensor, Tensor]:
    """As ``torch.nn.utils.rnn.pad_packed_sequence``."""
    given = (sequence, batch_first, padding_value, total_length)
    made = _try([member for member in sequence if member is not None], _pad_packed, *given)
    if made is not None:
        return _born(made)
    _check_packed(sequence, "pad_packed_sequence")
    return rnn.pad_packed_sequence(*given)


def _pad_packed(packed: PackedSequence, batch_first: Any, fill: Any, total: Any) -> tuple[Tensor, Tensor] | None:
    data, batch_sizes, _, back = packed
    loops = min(batch_sizes.shape[0], int(batch_sizes[0]))
    if loops < _FEW and data.is_cpu and batch_sizes.is_cpu and (back is None or back.is_cpu):
        return rnn.pad_packed_sequence(packed, batch_first, fill, total)
    if type(batch_first) is not bool or type(fill) not in (int, float) or type(total) not in (int, type(None)):
        return None
    lengths, order, counts = _opened(packed)
    time = counts[0] if total is None else total
    if time < counts[0]:
        return None

    def by_pytorch(sources: list[Tensor], lengths: Tensor, order: Tensor | None) -> Tensor:
        again = _packed(sources[0], lengths, order, int(lengths[0]))
        return rnn.pad_packed_sequence(again, batch_first, 0.0, time)[0]

    row = data.shape[1:]
    layout = BATCH_FIRST if batch_first else TIME_FIRST
    adds = order is not None or counts[0] != counts[-1]
    move = _Move(layout, PACKED, lengths, order, _row_nbytes(data, row), adds, by_pytorch)
    shape = (len(counts), time, *row) if batch_first else (time, len(counts), *row)
    (padded,) = move.make((data,), [shape], data.new_full(row, fill))
    return padded, lengths if back is None else lengths.index_select(0, back)


def _opened(packed: PackedSequence) -> tuple[Tensor, Tensor | None, list[int]]:
    """Lengths in descending order, the place of each in the batch as given, and the lengths as numbers.

    Raises
    ------
    ValueError, RuntimeError
        The fields do not belong together.
    """
    _, batch_sizes, _, back = packed
    if (
        batch_sizes.dtype is not torch.int64
        or batch_sizes.dim() != 1
        or (back is not None and back.dtype is not torch.int64)
    ):
        raise ValueError("batch sizes and indices are of an unusual dtype")
    lengths = torch.empty(int(batch_sizes[0]), dtype=torch.int64)
    count_above(lengths, batch_sizes)
    counts = _numbers(lengths)
    if counts[0] != batch_sizes.shape[0] or (back is not None and back.shape != lengths.shape):
        raise ValueError("a step has no sequence, or there are not as many indices as sequences")
    return lengths, _inverse(back), counts


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """As ``torch.nn.utils.rnn.unpack_sequence``."""
    sequences = _try([member for member in packed_sequences if member is not None], _unpack, packed_sequences)
    if sequences is not None:
        return list(_born(sequences))
    _check_packed(packed_sequences, "unpack_sequence")
    return rnn.unpack_sequence(packed_sequences)


def _unpack(packed: PackedSequence) -> tuple[Tensor, ...]:
    data, _, _, back = packed
    lengths, order, counts = _opened(packed)
    row = data.shape[1:]
    move = _Move(SEQUENCES, PACKED, lengths, order, _row_nbytes(data, row), True, _unpack_by_pytorch)
    return move.make(
        (data,), [(counts[place], *row) for place in (range(len(counts)) if back is None else _numbers(back))]
    )


def _unpack_by_pytorch(sources: list[Tensor], lengths: Tensor, order: Tensor | None) -> list[Tensor]:
    return rnn.unpack_sequence(_packed(sources[0], lengths, order, int(lengths[0])))


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: Any) -> list[Tensor]:
    """As ``torch.nn.utils.rnn.unpad_sequence``; lengths may be a list, and nothing is transposed in place."""
    if type(lengths) is OwnTensor:
        lengths = lengths.numpy()
    if not isinstance(lengths, Tensor):
        with _C.DisableTorchFunction():
            lengths = torch.as_tensor(lengths)
    sequences = _try((padded_sequences, lengths), _unpad, padded_sequences, lengths, batch_first)
    if sequences is not None:
        return list(_born(sequences))
    check_one_device([("padded_sequences", padded_sequences), ("lengths", lengths)], "unpad_sequence")
    return rnn.unpad_sequence(padded_sequences if batch_first else padded_sequences.transpose(0, 1), lengths, True)


def _unpad(padded_sequences: Tensor, given: Tensor, batch_first: Any) -> tuple[Tensor, ...] | None:
    padded, layout = _upright(padded_sequences, bool(batch_first))
    batch, time = padded.shape[:2] if layout == BATCH_FIRST else padded.shape[1::-1]
    if given.shape != (batch,) or not given.is_cpu or given.is_floating_point() or given.is_complex():
        return None
    counts: list[int] = [min(max(int(length), 0), time) for length in _numbers(given)]

    def by_pytorch(sources: list[Tensor], lengths: Tensor, order: Tensor | None) -> list[Tensor]:
        return rnn.unpad_sequence(sources[0] if layout == BATCH_FIRST else sources[0].transpose(0, 1), lengths, True)

    row = padded.shape[2:]
    move = _Move(SEQUENCES, layout, torch.tensor(counts), None, _row_nbytes(padded, row), True, by_pytorch)
    return move.make((padded,), [(count, *row) for count in counts])


def _named(sequences: list[Any]) -> list[tuple[str, Any]]:
    """Sequences with the names that messages use."""
    return [(f"sequence {index}", sequence) for index, sequence in enumerate(sequences)]


def _check_packed(packed: PackedSequence, what: str) -> None:
    named = [("data", packed[0]), ("sorted_indices", packed[2]), ("unsorted_indices", packed[3])]
    check_one_device([(name, member) for name, member in named if member is not None], what)


# Births of what was made where nobody saw it.


def _born(tensors: Born) -> Born:
    """Record the births of plain tensors that were made unseen, where a scope is open."""
    if births_now():
        _charge(tensors)
        for tensor in tensors:
            born(tensor, TENSOR)
    return tensors


def _born_packed(packed: PackedSequence) -> PackedSequence:
    """Record the birth of a packed sequence of plain tensors that were made unseen, where a scope is open."""
    if births_now():
        _charge([member for member in packed if member is not None])
        if born_whole(packed, TORCH_PACKED_SEQUENCE, packed, TENSOR) is None:
            born_together(packed, TORCH_PACKED_SEQUENCE)
    return packed


def _charge(tensors: Iterable[Tensor]) -> None:
    """Count new tensors against the budgets of the scopes.

    Raises
    ------
    MemoryError
        A budget refuses. Nothing is recorded then.
    """
    refusal = refusal_of(list(tensors), ()) if BUDGETED else None
    if refusal is not None:
        raise refusal


def check_one_device(tensors: Iterable[tuple[str, Any]], what: str) -> None:
    """Raise `DeviceMismatchError` where two tensors live on different devices, also where PyTorch copies in silence."""
    first: tuple[str, Any, str] | None = None
    for name, tensor in tensors:
        device = tensor.device
        if first is None:
            first = name, device, device_name(device)
        elif device != first[1] and device_name(device) != first[2]:
            raise DeviceMismatchError(
                f"{what}: {first[0]} is on {first[2]} and {name} on {device_name(device)}; "
                "move them to one device first, with .to(device)",
                members=(first[0], name),
                devices=(first[2], device_name(device)),
            )


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
