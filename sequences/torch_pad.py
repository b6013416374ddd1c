"""Padding and unpadding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..scopes.context import CURRENT
from ..scopes.identity import LIVE
from ..scopes.listeners import LISTENERS
from ..tensors.numpy.alignment import unserved
from ..tensors.tensor.tensor import Tensor as OwnTensor
from ..tensors.torch.births import WATCHES
from .inputs import batch_sizes_of
from .torch_inputs import PLAIN, PLAIN_PACKED, TorchFunctions, check_one_device
from .torch_pack import named, pack_padded_sequence, pack_sequence
from .torch_packed import born_fresh, born_tensors
from .torch_rows import (
    BelowAutograd,
    Index,
    Undisturbed,
    apply_function,
    aside,
    fast_dtypes,
    from_numpy,
    gather,
    gathers_padded,
    is_plain_cpu,
    joined,
    kernel_pad,
    kernel_pad_with_graph,
    needs_grad,
    only_ours_look_on,
    padded_rows,
    plain_classes,
    quietly,
    rows_of,
    separate,
    split,
    underived,
    unseen,
    unwatched,
)
from .torch_rows import kernel_pad_sequence as _kernel

__all__ = [
    "FUNCTIONS",
    "check_packed",
    "opened",
    "pad_packed_sequence",
    "pad_plain_sequences",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]

# Padding PyTorch's packed sequences: what ``torch.nn.utils.rnn`` returns, bit for bit, by the
# fastest way for each.


_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
_stack: Final[Callable[..., Tensor]] = torch.stack
_NUMBERS: Final = frozenset({int, float})

# Measured; see benchmarks/bench_pack.py.
_FEW_STEPS: Final = 8
_FEW_PLACES: Final = 64


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: Any, padding_value: Any, total_length: Any
) -> tuple[Tensor, Tensor]:
    """As ``torch.nn.utils.rnn.pad_packed_sequence``."""
    result: tuple[Tensor, Tensor] | None = None
    if (
        type(batch_first) is bool
        and type(padding_value) in _NUMBERS
        and (total_length is None or type(total_length) is int)
        and _is_plain(sequence)
    ):
        result = aside(_padded, (sequence, batch_first, padding_value, total_length))
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


def _padded(given: tuple[PackedSequence, bool, float, int | None]) -> tuple[Tensor, Tensor] | None:
    """None for what PyTorch refuses: it shall say so itself."""
    packed, batch_first, fill, total_length = given
    data, batch_sizes, _, back = packed
    if not data.is_cpu or not batch_sizes.is_cpu or not (back is None or back.is_cpu) or batch_sizes.dim() != 1:
        return None
    steps = batch_sizes.shape[0]
    time = steps if total_length is None else total_length
    if time < steps:
        return None
    along = 0 if batch_first else 1
    if data.requires_grad and _grad_enabled():
        if not is_plain_cpu(data) or not data.numel():
            return None
        alone = _is_alone(data, batch_sizes, steps) if time == steps and fill == 0 else None
        if alone is not None:
            padded = _stack((data,), along if alone else 1 - along)
            lengths = from_numpy(unserved(np.array, [steps])) if alone else torch.ones(data.shape[0], dtype=torch.int64)
        elif steps < _FEW_STEPS:
            padded, lengths = kernel_pad_with_graph(data, batch_sizes, batch_first, fill, time)
        elif not _are_whole(data, batch_sizes, back):
            return None
        else:
            padded, lengths = unserved(padded_rows, data, batch_sizes, None, back, batch_first, fill, time)
            return padded, lengths if back is None else lengths.index_select(0, back)
    elif gathers_padded(data, steps, back is None):
        if not is_plain_cpu(data) or not data.numel() or opened(packed) is None:
            return None
        padded, lengths = unserved(padded_rows, data, batch_sizes, None, back, batch_first, fill, time)
        return padded, lengths if back is None else lengths.index_select(0, back)
    else:
        padded, lengths = kernel_pad(data, batch_sizes, batch_first, fill, time)
    if back is None:
        return padded, lengths
    return padded.index_select(along, back), lengths.index_select(0, back)


def _is_alone(data: Tensor, batch_sizes: Tensor, steps: int) -> bool | None:
    """Whether there is one sequence at each step; None where there are several, but in a single step False."""
    rows = data.shape[0]
    if (steps != 1 and rows != steps) or batch_sizes.dtype is not torch.int64:
        return None
    sizes: Index = batch_sizes.numpy()
    if steps == 1:
        return rows == 1 if sizes[0] == rows else None
    return np.count_nonzero(sizes == 1) == steps or None


def _are_whole(data: Tensor, batch_sizes: Tensor, back: Tensor | None) -> bool:
    """Whether batch sizes and places belong together, as `opened` asks."""
    if batch_sizes.shape[0] > _FEW_PLACES or batch_sizes.dtype is not torch.int64:
        return opened((data, batch_sizes, None, back)) is not None
    sizes: list[int] = cast(Any, batch_sizes).tolist()
    if not sizes or sizes[-1] <= 0 or sum(sizes) != data.shape[0] or sizes != sorted(sizes, reverse=True):
        return False
    if back is None:
        return True
    return back.dtype is torch.int64 and back.shape == (sizes[0],) and _is_permutation(back.numpy())


def opened(packed: tuple[Tensor, Tensor, Tensor | None, Tensor | None]) -> tuple[Index, Index | None] | None:
    """Batch sizes, and place of each sequence in the order given; None where the fields do not belong together.

    For fields of plain classes, on the CPU.
    """
    data, batch_sizes, _, back = packed
    if batch_sizes.dtype is not torch.int64 or batch_sizes.dim() != 1:
        return None
    sizes: Index = batch_sizes.numpy()
    # Functions of NumPy's that ask the least of what they are given.
    if (
        not sizes.size
        or sizes[-1] <= 0
        or np.add.reduce(sizes) != data.shape[0]
        or np.count_nonzero(sizes[1:] > sizes[:-1])
    ):
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


# Padding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by the fastest way
# for each shape.


_function_modes: Final[Callable[[], int]] = cast(Any, torch)._C._len_torch_function_stack
_narrow_copy: Final[Callable[[Tensor, int, int, int], Tensor]] = cast(Any, torch).narrow_copy
_strided: Final = torch.strided
_is_cpu: Final[Callable[[Tensor], bool]] = attrgetter("is_cpu")

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

# Unpacking and unpadding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, each
# with own memory.


# Measured; see benchmarks/bench_pack.py.
_FEW_TO_UNPACK: Final = 8


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """As ``torch.nn.utils.rnn.unpack_sequence``."""
    sequences: list[Tensor] | None = None
    if plain_classes.issuperset(type(member) for member in packed_sequences if member is not None):
        sequences = unserved(aside, _unpacked, packed_sequences)
    if sequences is not None:
        born_fresh(sequences)
    else:
        check_packed(packed_sequences, "unpack_sequence")
        sequences = rnn.unpack_sequence(packed_sequences)
        born_tensors(sequences)
    return sequences


def _unpacked(packed: PackedSequence) -> list[Tensor] | None:
    data, batch_sizes, _, back = packed
    if not is_plain_cpu(data) or not batch_sizes.is_cpu or not (back is None or back.is_cpu) or not data.numel():
        return None
    found = opened(packed)
    if found is None:
        return None
    sizes, places = found
    batch = int(sizes[0])
    if batch == 1:
        return [_first_rows(data, data.shape[0])]
    lengths = batch_sizes_of(sizes)
    if places is None:
        places = np.arange(batch)
    else:
        lengths = lengths[places]
    starts = sizes.cumsum() - sizes
    return separate(data, starts[_steps(lengths)] + places.repeat(lengths), lengths.tolist())


def _first_rows(rows: Tensor, count: int) -> Tensor:
    """The first rows of a tensor, copied. The gradient is added to zeros, as PyTorch's is: see `rows_of`."""
    return rows.index_select(0, torch.arange(count))


def _steps(lengths: Index) -> Index:
    """0, 1, ... up to each length, one after another."""
    ends = lengths.cumsum()
    steps: Index = np.arange(int(ends[-1])) - (ends - lengths).repeat(lengths)
    return steps


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: Any) -> list[Tensor]:
    """As ``torch.nn.utils.rnn.unpad_sequence``; lengths may be a list, and nothing is transposed in place."""
    if type(lengths) is OwnTensor:
        lengths = lengths.numpy()
    if not isinstance(lengths, Tensor):
        with Undisturbed():
            lengths = torch.as_tensor(lengths)
    sequences: list[Tensor] | None = None
    if type(padded_sequences) in plain_classes and type(lengths) is Tensor:
        sequences = unserved(aside, _unpadded, (padded_sequences, lengths, batch_first))
    if sequences is not None:
        born_fresh(sequences)
    else:
        check_one_device([("padded_sequences", padded_sequences), ("lengths", lengths)], "unpad_sequence")
        sequences = rnn.unpad_sequence(
            padded_sequences if batch_first else padded_sequences.transpose(0, 1), lengths, batch_first=True
        )
        born_tensors(sequences)
    return sequences


def _unpadded(given: tuple[Tensor, Tensor, Any]) -> list[Tensor] | None:
    """None where the lengths are not one whole number for each sequence, and for what PyTorch refuses."""
    padded, lengths, batch_first = given
    if not is_plain_cpu(padded) or padded.dim() < 2 or not padded.numel():
        return None
    batch, longest = padded.shape[:2] if batch_first else padded.shape[1::-1]
    if not is_plain_cpu(lengths) or lengths.dim() != 1 or lengths.shape[0] != batch:
        return None
    if lengths.is_floating_point() or lengths.is_complex():
        return None
    counted: list[int] = cast(Any, lengths).tolist()
    kept = [min(max(int(length), 0), longest) for length in counted]
    graph = needs_grad((padded,))
    if batch == 1:
        return [_first_rows(padded.flatten(0, 1), kept[0])]
    if graph and batch < _FEW_TO_UNPACK:
        by_sequence = padded if batch_first else padded.transpose(0, 1)
        return [_first_rows(row, count) for row, count in zip(by_sequence.unbind(0), kept, strict=True)]
    if not graph:
        by_sequence = padded if batch_first else padded.transpose(0, 1)
        pairs = zip(by_sequence.unbind(0), kept, strict=True)
        return [
            (row if count == longest else row.narrow(0, 0, count)).clone(memory_format=torch.contiguous_format)
            for row, count in pairs
        ]
    counts: Index = np.array(kept)
    which: Index = np.arange(batch).repeat(counts)
    steps = _steps(counts)
    transposed = padded.transpose(0, 1)
    # Rows lie one after another along one of the two axes, or they are brought into that order first.
    flipped = not padded.is_contiguous() and transposed.is_contiguous()
    rows = (transposed if flipped else padded).flatten(0, 1)
    return separate(rows, which * longest + steps if batch_first != flipped else steps * batch + which, kept)


# The sequence functions for PyTorch's tensors, in one row. Imported when the first such tensor is
# met.


FUNCTIONS = TorchFunctions(
    pack_sequence=pack_sequence,
    pack_padded_sequence=pack_padded_sequence,
    pad_sequence=pad_sequence,
    pad_plain_sequences=pad_plain_sequences,
    pad_packed_sequence=pad_packed_sequence,
    unpack_sequence=unpack_sequence,
    unpad_sequence=unpad_sequence,
)
PLAIN.update(plain_classes)
PLAIN_PACKED.add(PackedSequence)
