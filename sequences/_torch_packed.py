"""``torch.nn.utils.rnn.PackedSequence`` as a kind of resource: a composite of its tensors.

It is a tuple, which cannot be weakly referenced, and it is rebuilt at every turn (``to``, ``pin_memory``, a trip
through a queue). So its data stands for it: whoever holds the data tensor in a packed sequence holds the same resource.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Final

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..scopes._kinds import Kind, add_kind
from ..tensors._torch import KIND as TENSOR

__all__ = ["TORCH_PACKED_SEQUENCE", "check_whole", "teach"]

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


def teach() -> None:
    """Register the kind."""
    add_kind(TORCH_PACKED_SEQUENCE)


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
