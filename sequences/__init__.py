"""Sequences: composites of tensors, and the batches made of them."""

from . import _torch_arrival as _torch_arrival
from ._batches import scoped_batches
from ._collate import ScopedCollate
from ._pack import pack_padded_sequence, pack_sequence
from ._pack_collate import pack_collate
from ._packed import PackedSequence
from ._pad import pad_packed_sequence, pad_sequence, unpack_sequence, unpad_sequence

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
