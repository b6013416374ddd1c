"""``torch.nn.utils.rnn.PackedSequence`` as a kind of resource: a composite of its tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..scopes.composites import compose
from ..scopes.context import CURRENT
from ..scopes.identity import LIVE
from ..scopes.kinds import Kind
from ..scopes.ownership import born, born_composite, born_whole
from ..tensors.arena.budgets import BUDGETED
from ..tensors.torch.adapter import KIND as TENSOR
from ..tensors.torch.births import births_in, births_now
from ..tensors.torch.storages import refusal_of

__all__ = [
    "TORCH_PACKED_SEQUENCE",
    "born_fresh",
    "born_fresh_packed",
    "born_tensors",
    "check_whole",
    "see_births",
]

# ``torch.nn.utils.rnn.PackedSequence`` as a kind of resource: a composite of its tensors.
#
# It is a tuple, which cannot be weakly referenced, and it is rebuilt at every turn (``to``,
# ``pin_memory``, a trip through a queue). So its data stands for it: whoever holds the data tensor
# in a packed sequence holds the same resource.
#
# Whoever makes one, PyTorch's functions and modules, ``copy``, ``pickle`` or the user, comes
# through one of the two constructors of its class: ``__new__``, or ``_make``, to which ``_replace``
# and ``torch.compile`` come. Both tell the scopes of what they have made. Who calls
# ``tuple.__new__`` tells himself, as the functions of this package do; of what protocols 0 and 1 of
# ``pickle`` make so nobody tells, and it is known as soon as a verb meets it.


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

    ``default_collate`` takes packed sequences for tuples and stacks their fields, which makes one that looks whole.
    """
    data, batch_sizes = packed[0], packed[1]
    if not _is_disposed(packed) and batch_sizes.dim() != 1:
        raise ValueError(
            f"{what}: the batch has a PackedSequence whose batch_sizes has shape {tuple(batch_sizes.shape)} and data "
            f"{tuple(data.shape)}: the fields of packed sequences were stacked, as default_collate does it, which "
            "makes no packed sequence. Let the dataset give the sequences themselves, and pack_collate() pack them"
        )


# Births of what the sequence functions make of PyTorch's tensors: as a whole, where a scope is
# open.


def born_fresh(tensors: Iterable[Tensor]) -> None:
    """Record the births of plain tensors that were made unseen, where a scope is open."""
    if births_now():
        if BUDGETED:
            _charge(tensors)
        for tensor in tensors:
            if id(tensor) not in LIVE:
                born(tensor, TENSOR)


def born_fresh_packed(packed: PackedSequence) -> PackedSequence:
    """Record the birth of a packed sequence of plain tensors that were made unseen, where a scope is open."""
    if births_now():
        if BUDGETED:
            _charge([member for member in packed if member is not None])
        if born_whole(packed, TORCH_PACKED_SEQUENCE, packed, TENSOR) is None:
            # Born one by one after all: what made them did so within sight.
            born_composite(packed, TORCH_PACKED_SEQUENCE)
    return packed


def _charge(tensors: Iterable[Tensor]) -> None:
    """Count new tensors against the budgets of the scopes.

    Raises
    ------
    MemoryError
        A budget refuses. Nothing is recorded then.
    """
    refusal = refusal_of(list(tensors), ())
    if refusal is not None:
        raise refusal


def born_tensors(tensors: Any) -> None:
    """Record the births of a tensor, or of those in a list or tuple, where a scope is open and has not seen them."""
    if CURRENT.get() is not None:
        refusal = births_in(tensors)
        if refusal is not None:
            raise refusal
