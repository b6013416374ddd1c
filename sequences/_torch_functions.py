"""The sequence functions for PyTorch's tensors, in one row. Imported when the first such tensor is met."""

from __future__ import annotations

from torch.nn.utils.rnn import PackedSequence

from ._torch_inputs import PLAIN, PLAIN_PACKED, TorchFunctions
from ._torch_pack import pack_padded_sequence, pack_sequence
from ._torch_pad import pad_plain_sequences, pad_sequence
from ._torch_pad_packed import pad_packed_sequence
from ._torch_unpack import unpack_sequence, unpad_sequence
from ._torch_watch import plain_classes

__all__ = ["FUNCTIONS"]

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
