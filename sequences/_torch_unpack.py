"""Unpacking and unpadding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, each with own memory."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..tensors._alignment import unserved
from ..tensors._tensor import Tensor as OwnTensor
from ._layout import batch_sizes_of
from ._torch_births import born_fresh, born_tensors
from ._torch_inputs import check_one_device
from ._torch_pad_packed import check_packed, opened
from ._torch_rows import Index, separate
from ._torch_watch import Undisturbed, aside, is_plain_cpu, needs_grad, plain_classes

# Measured; see benchmarks/bench_pack.py.
_FEW: Final = 8

__all__ = ["unpack_sequence", "unpad_sequence"]


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
    if graph and batch < _FEW:
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
