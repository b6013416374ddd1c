"""Packing PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by one gather where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..tensors._tensor import Tensor as OwnTensor
from ._layout import batch_sizes_of, steps_of
from ._torch_inputs import check_one_device
from ._torch_packed import born_packed
from ._torch_rows import Index, Undisturbed, can_gather, from_numpy, is_wide, needs_grad, rows_of

__all__ = ["named", "pack_padded_sequence", "pack_sequence", "packed_of"]


def pack_sequence(sequences: list[Any], enforce_sorted: bool) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_sequence``."""
    if sequences and can_gather(sequences):
        with Undisturbed():
            packed = _gathered_sequences(sequences, enforce_sorted)
        if packed is not None:
            return born_packed(packed)
    check_one_device(named(sequences), "pack_sequence")
    return born_packed(rnn.pack_sequence(sequences, enforce_sorted))


def named(sequences: list[Any]) -> list[tuple[str, Any]]:
    """Sequences with the names that messages use."""
    return [(f"sequence {index}", sequence) for index, sequence in enumerate(sequences)]


def _gathered_sequences(sequences: list[Any], enforce_sorted: Any) -> PackedSequence | None:
    """None for what PyTorch refuses: it shall say so itself."""
    lengths = [sequence.shape[0] for sequence in sequences]
    order = _order_of(lengths, enforce_sorted)
    if order is None:
        return None
    counts, places = order
    offsets = np.cumsum(lengths) - lengths
    if places is not None:
        offsets = offsets[places.numpy()]
    batch_sizes = batch_sizes_of(counts)
    _, times, ranks = steps_of(batch_sizes)
    return packed_of(rows_of(sequences, offsets[ranks] + times), batch_sizes, places)


def _order_of(lengths: list[int] | Tensor, enforce_sorted: Any) -> tuple[Index, Tensor | None] | None:
    """The lengths, longest first, and the order where they are to be sorted; None where that is wrong."""
    given = torch.as_tensor(lengths, dtype=torch.int64)
    places: Tensor | None = None
    if not enforce_sorted:
        given, places = torch.sort(given, descending=True)
    counts: Index = given.numpy()
    if counts[-1] <= 0 or (counts[1:] > counts[:-1]).any():
        return None
    return counts, places


def packed_of(data: Tensor, batch_sizes: Index, places: Tensor | None) -> PackedSequence:
    """A packed sequence of its parts; the inverse of the order is made."""
    back = None
    if places is not None:
        back = torch.empty_like(places)
        back[places] = torch.arange(places.numel())
    return PackedSequence(data, from_numpy(batch_sizes), places, back)


def pack_padded_sequence(input: Any, lengths: Any, batch_first: Any, enforce_sorted: Any) -> PackedSequence:
    """As ``torch.nn.utils.rnn.pack_padded_sequence``; lengths may be anything that makes a tensor."""
    if isinstance(lengths, OwnTensor):
        lengths = torch.as_tensor(lengths.numpy())
    packed: PackedSequence | None = None
    if can_gather([input]) and isinstance(batch_first, bool):
        with Undisturbed():
            if input.dim() >= 2 and input.numel() and (needs_grad([input]) or is_wide(input[0])):
                packed = _gathered_padded(input, lengths, batch_first, enforce_sorted)
            elif not isinstance(lengths, Tensor) or type(lengths) is Tensor:
                packed = rnn.pack_padded_sequence(input, lengths, batch_first, enforce_sorted)
    return born_packed(
        rnn.pack_padded_sequence(input, lengths, batch_first, enforce_sorted) if packed is None else packed
    )


def _gathered_padded(input: Tensor, lengths: Any, batch_first: bool, enforce_sorted: Any) -> PackedSequence | None:
    by_sequence = input if batch_first else input.transpose(0, 1)
    batch, longest = by_sequence.shape[:2]
    counts = _whole_lengths(lengths, batch)
    order = None if counts is None else _order_of(counts, enforce_sorted)
    if order is None or order[0][0] > longest:
        return None
    sorted_counts, places = order
    batch_sizes = batch_sizes_of(sorted_counts)
    _, times, ranks = steps_of(batch_sizes)
    if places is not None:
        ranks = places.numpy()[ranks]
    # Rows lie one after another along one of the two axes, or they are brought into that order first.
    if not input.is_contiguous() and by_sequence.is_contiguous():
        rows, index = by_sequence.flatten(0, 1), ranks * longest + times
    elif batch_first:
        rows, index = input.flatten(0, 1), ranks * longest + times
    else:
        rows, index = input.flatten(0, 1), times * batch + ranks
    return packed_of(rows_of([rows], index), batch_sizes, places)


def _whole_lengths(lengths: Any, batch: int) -> Tensor | None:
    """Lengths that are one whole number for each sequence, or None."""
    if type(lengths) is Tensor:
        whole = lengths.is_cpu and not lengths.is_floating_point() and lengths.dim() == 1 and not lengths.is_complex()
        return lengths.to(torch.int64) if whole and lengths.numel() == batch else None
    if not isinstance(lengths, (list, tuple)):
        return None
    given = cast("Sequence[Any]", lengths)
    return torch.tensor(given) if len(given) == batch and all(type(length) is int for length in given) else None
