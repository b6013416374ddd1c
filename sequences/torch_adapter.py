"""The adapter of PyTorch's tensors, and PyTorch's packed sequences as resources.

This module imports PyTorch. It is imported only after the program has imported PyTorch.

For few sequences or steps PyTorch's functions are called, too: they loop over steps or lengths, and
take less time for few of them than the checks here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..scopes.base.errors import DeviceMismatchError
from ..scopes.base.process import PATCHES
from ..scopes.identity import LIVE
from ..scopes.kinds import Kind, device_name
from ..scopes.ownership import born, born_together, compose
from ..tensors.arena.budgets import BUDGETS
from ..tensors.patches import TORCH_PACKED_SEQUENCES
from ..tensors.tensor.tensor import Tensor as OwnTensor
from ..tensors.torch.adapter import KIND as TENSOR
from ..tensors.torch.births import MODE, SEAM, births_now
from ..tensors.torch.storages import refusal_of
from .adapter import Array, Block, Integers
from .array_adapter import ArrayAdapter

__all__ = [
    "TENSORS",
    "TORCH_PACKED_SEQUENCE",
    "check_whole",
    "see_births",
]

# ``torch.nn.utils.rnn.PackedSequence`` as a kind of resource: a composite of its tensors.
#
# It is a tuple, which cannot be weakly referenced, and it is often rebuilt (``to``, ``pin_memory``,
# a queue). So its data tensor is its anchor: packed sequences with the same data tensor are the
# same resource.
#
# Packed sequences are made by PyTorch's functions and modules, ``copy``, ``pickle`` and users. All
# of them call one of the two constructors of the class: ``__new__``, or ``_make``, which
# ``_replace`` and ``torch.compile`` call. Both are patched to record births. Protocols 0 and 1 of
# ``pickle`` call ``tuple.__new__``; such a packed sequence is recorded when a verb meets it.


_FIELDS: Final = PackedSequence._fields


@final
class TorchPackedSequenceKind(Kind):
    """The kind of PyTorch's packed sequences: tuples, each identified by its data tensor."""

    cls = PackedSequence
    name = "torch.nn.utils.rnn.PackedSequence"
    # PyTorch keeps batch sizes on the CPU: see the notes of its class PackedSequence.
    host_members = frozenset({"batch_sizes"})

    def anchor(self, resource: Any, /) -> object:
        """Return its data."""
        return resource[0]

    def device(self, resource: Any, /) -> object:
        """Return the device of its data."""
        return TENSOR.device(resource[0])

    def describe(self, resource: Any, /) -> str:
        """Return shape and dtype of its data."""
        return f"torch PackedSequence of {TENSOR.describe(resource[0])}"

    def members(self, resource: Any, /) -> dict[str, object]:
        """Return the fields that are not None, by name."""
        return {name: member for name, member in zip(_FIELDS, resource, strict=True) if member is not None}

    def is_disposed(self, resource: Any, /) -> bool:
        """Return whether its data has been disposed."""
        return TENSOR.is_disposed(resource[0])


TORCH_PACKED_SEQUENCE: Final = TorchPackedSequenceKind()


def see_births() -> None:
    """Record the births of packed sequences from now on, on every thread."""
    PATCHES.replace(TORCH_PACKED_SEQUENCES, PackedSequence, "__new__", lambda new: staticmethod(_recorded(new)))
    PATCHES.replace(TORCH_PACKED_SEQUENCES, PackedSequence, "_make", lambda make: classmethod(_recorded(make.__func__)))


def _recorded(construct: Callable[..., PackedSequence]) -> Callable[..., PackedSequence]:
    """Return a constructor that also records the birth of its result."""

    @functools.wraps(construct)
    def constructed(cls: type[PackedSequence], *args: Any, **kwargs: Any) -> PackedSequence:
        packed = construct(cls, *args, **kwargs)
        # torch.compile traces this code. The first test is a constant for it.
        if not torch.compiler.is_compiling() and id(packed[0]) in LIVE:
            compose(packed, TORCH_PACKED_SEQUENCE)
        return packed

    return constructed


def check_whole(packed: PackedSequence, what: str) -> None:
    """Raise `ValueError` if the fields of a packed sequence cannot belong together.

    ``default_collate`` takes packed sequences for tuples and stacks their fields. The result is of
    the class PackedSequence, but invalid.
    """
    data, batch_sizes = packed[0], packed[1]
    if not TORCH_PACKED_SEQUENCE.is_disposed(packed) and batch_sizes.dim() != 1:
        raise ValueError(
            f"{what}: the batch has a PackedSequence whose batch_sizes has shape {tuple(batch_sizes.shape)} and data "
            f"{tuple(data.shape)}: the fields of packed sequences were stacked, as default_collate does it, which "
            "makes no packed sequence. Let the dataset give the sequences themselves, and pack_collate() pack them"
        )


_FEW_ITERATIONS: Final = 12
"""PyTorch's function is called for fewer iterations of its loop than this.

Measured with ``benchmarks/bench_pack.py``.
"""

_C: Final[Any] = torch._C
_forward_ad: Final[Any] = torch.autograd.forward_ad
_CLASSES: Final = frozenset({Tensor, torch.nn.Parameter})


def _by_pytorch(name: str, given: tuple[Any, ...]) -> Any:
    """Call PyTorch's function of a name with the user's arguments."""
    if name == "unpad_sequence":
        # PyTorch's function accepts no list of lengths, and transposes its argument in place.
        padded, lengths, batch_first = given
        counts = (
            lengths if isinstance(lengths, Tensor) else torch.as_tensor(_for_pytorch(lengths), device=padded.device)
        )
        _check_lengths(padded, counts, batch_first)
        return rnn.unpad_sequence(padded if batch_first else padded.transpose(0, 1), counts, True)
    if name == "pack_padded_sequence":
        padded, lengths, *options = given
        return rnn.pack_padded_sequence(padded, _for_pytorch(lengths), *options)
    return getattr(rnn, name)(*given)


def _check_lengths(padded: Any, counts: Tensor, batch_first: Any) -> None:
    """Raise `ValueError` for a wrong number of lengths: PyTorch 2.9 ignores surplus ones."""
    with _C.DisableTorchFunction():
        if padded.dim() > 1 and counts.dim() == 1 and len(counts) != (batch := padded.shape[0 if batch_first else 1]):
            raise ValueError(f"unpad_sequence: got {len(counts)} lengths for {batch} sequences")


def _for_pytorch(given: Any) -> Any:
    """Return an argument for PyTorch: a `Tensor` of this package as a tensor of PyTorch."""
    converted: Any = torch.as_tensor(given.numpy()) if type(given) is OwnTensor else given
    return converted


def _fits_pytorch(name: str, given: tuple[Any, ...], tensors: list[Any]) -> bool:
    """Return whether to call PyTorch's function: it records a graph, or is faster for few rows."""
    # How often PyTorch's function loops.
    loops = _FEW_ITERATIONS
    if name == "pad_sequence":
        loops = len(tensors)
    elif name == "pack_padded_sequence":
        # PyTorch loops over the different lengths: at most over sequences or steps.
        loops = min(given[0].shape[:2])
    elif name == "pad_packed_sequence":
        loops = min(tensors[1].shape[0], int(tensors[1][0]))
    return loops < _FEW_ITERATIONS or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _is_unobserved() -> bool:
    """Return whether nothing but scopes follows operations.

    That is: no compiler, detector, mode, transform, trace or dual level of forward AD.
    """
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


def _tensors_in(given: tuple[Any, ...]) -> list[tuple[str | int, Any]]:
    """Return the tensors among the user's arguments, with their names or list indices."""
    first: Any = given[0]
    if isinstance(first, PackedSequence):
        return list(TORCH_PACKED_SEQUENCE.members(first).items())
    if isinstance(first, Tensor):
        return [("padded_sequences", first), *([("lengths", given[1])] if isinstance(given[1], Tensor) else [])]
    sequences: list[Any] = first
    return list(enumerate(sequences))


def _born(made: Any) -> Any:
    """Record the births of results, a packed sequence or tensors, if a scope is open.

    The results were made with births switched off. Returns them.

    Raises
    ------
    MemoryError
        A budget refuses the memory. Nothing is recorded then.
    """
    if not births_now():
        return made
    tensors = [made] if isinstance(made, Tensor) else [member for member in made if member is not None]
    refusal = refusal_of(tensors, ()) if BUDGETS.scopes else None
    if refusal is not None:
        raise refusal
    if isinstance(made, PackedSequence):
        born_together(made, TORCH_PACKED_SEQUENCE, TENSOR)
    else:
        for tensor in tensors:
            born(tensor, TENSOR)
    return made


def _check_one_device(tensors: Iterable[tuple[str | int, Any]], what: str) -> None:
    """Raise `DeviceMismatchError` if two tensors live on different devices.

    Also in cases where PyTorch would copy without a warning.
    """
    # Batch sizes are always on the CPU.
    compared = [(name, device_name(tensor.device)) for name, tensor in tensors if name != "batch_sizes"]
    for name, device in compared:
        if device != compared[0][1]:
            members = tuple(at if isinstance(at, str) else f"sequence {at}" for at in (compared[0][0], name))
            raise DeviceMismatchError(
                f"{what}: {members[0]} is on {compared[0][1]} and {members[1]} on {device}; "
                "move them to one device first, with .to(device)",
                members=members,
                devices=(compared[0][1], device),
            )


@final
class TorchAdapter(ArrayAdapter):
    """The operations on PyTorch's tensors that the sequence functions need.

    If a method raises, PyTorch's function is called, which raises its own error or succeeds.
    """

    __slots__ = ()

    def call(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function of this package if it fits the arguments, else PyTorch's of the name."""
        named = _tensors_in(given)
        tensors = [tensor for _, tensor in named]
        is_plain = _CLASSES.issuperset(map(type, tensors)) and all(tensor.is_cpu for tensor in tensors)
        if is_plain and _is_unobserved():
            try:
                with _C.DisableTorchFunction():
                    if _fits_pytorch(name, given, tensors):
                        made = _by_pytorch(name, given)
                    else:
                        made = function(self, name, *given)
            except (IndexError, OverflowError, RuntimeError, TypeError, ValueError):
                # PyTorch's function, called below, raises its own error or succeeds.
                pass
            else:
                return _born(made)
        if name != "pack_padded_sequence":
            _check_one_device(named, name)
        return _by_pytorch(name, given)

    def block(self, given: Any, what: str) -> Block:
        """Return the given tensor."""
        return given

    def blocks(self, sequences: Any, what: str, not_iterable: type[Exception]) -> list[Block]:
        """Return the given tensors."""
        return list(sequences)

    def fields(self, packed: Any, what: str) -> tuple[Block, Array, Array | None]:
        """Return data, batch sizes and unsorted indices of a packed sequence."""
        data, batch_sizes, _, places = packed
        return data, _array(batch_sizes), None if places is None else _array(places)

    def lengths(self, given: Any, what: str) -> Array:
        """Return lengths, of any shape and number type."""
        lengths = torch.as_tensor(_for_pytorch(given))
        if lengths.is_complex():
            raise ValueError("the lengths are complex numbers")
        return _array(lengths)

    def descending(self, lengths: Integers) -> Integers:
        """Return the order of ``torch.sort``, also for equal lengths."""
        given: Any = torch.tensor(lengths)
        return torch.sort(given, descending=True)[1].numpy()

    def alike(self, blocks: list[Block], what: str) -> list[Block]:
        """Return the tensors, if they have one dtype and one trailing shape.

        Tensors that are not contiguous are refused later, by `compiled.move_rows`.

        Raises
        ------
        ValueError
            They have not, or the first one is quantized.
        """
        first = blocks[0]
        row, dtype = first.shape[1:], first.dtype
        if first.is_quantized or any(block.shape[1:] != row or block.dtype is not dtype for block in blocks):
            raise ValueError("the tensors are quantized, or differ in dtype or trailing shape")
        return blocks

    def empty(self, shape: tuple[int, ...], like: Block) -> Block:
        """Return a new tensor of undefined values, with the dtype of another."""
        return torch.empty(shape, dtype=like.dtype)

    def full(self, shape: tuple[int, ...], like: Block, value: Any, what: str, as_float: bool) -> Block:
        """Return a new tensor filled with a padding value."""
        if type(value) not in (int, float):
            raise TypeError("the padding value is neither int nor float")
        return like.new_full(shape, float(value) if as_float else value)

    def tensor(self, block: Block) -> Any:
        """Return a tensor itself, or the tensor of an array."""
        return block if isinstance(block, Tensor) else torch.tensor(block)

    def packed(self, data: Block, *indices: Integers | None) -> Any:
        """Return PyTorch's packed sequence."""
        return PackedSequence(data, *[None if array is None else torch.tensor(array) for array in indices])

    def of_one_dtype(self, blocks: list[Block], names: list[str]) -> list[Block]:
        """Return tensors converted to a dtype that can hold the values of all."""
        _check_one_device(zip(names, blocks, strict=True), "pack_collate")
        dtype = functools.reduce(torch.promote_types, [block.dtype for block in blocks])
        return [block.to(dtype) for block in blocks]

    def stacked(self, blocks: list[Block]) -> Any:
        """Return a tensor of tensors that are stacked along a new first axis."""
        return torch.stack(blocks)


def _array(tensor: Any) -> Array:
    """Return a copy as an array: after ``Tensor.numpy`` the tensor could never be resized."""
    return np.array(tensor.tolist(), str(tensor.dtype).removeprefix("torch."))


TENSORS: Final = TorchAdapter()
