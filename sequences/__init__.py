"""Sequences: composites of tensors, and the batches made of them."""

from ..scopes.kinds import await_module
from .batches import scoped_batches
from .collate import ScopedCollate, pack_collate
from .pack import pack_padded_sequence, pack_sequence
from .packed import PackedSequence
from .pad import pad_packed_sequence, pad_sequence, unpack_sequence, unpad_sequence

__all__ = [
    "PackedSequence",
    "ScopedCollate",
    "pack_collate",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "scoped_batches",
    "unpack_sequence",
    "unpad_sequence",
]


def _teach() -> None:
    from .torch_adapter import teach

    teach()


await_module("torch", _teach)
