"""Padding and unpadding PyTorch's tensors: what ``torch.nn.utils.rnn`` returns, bit for bit, by gathers if possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..tensors._tensor import Tensor as OwnTensor
from ._torch_inputs import check_one_device
from ._torch_pack import named
from ._torch_packed import born_tensors
from ._torch_rows import (
    Index,
    Undisturbed,
    can_gather,
    fast_dtypes,
    from_numpy,
    is_wide,
    needs_grad,
    quietly,
    rows_of,
    separate,
)

__all__ = ["pad_packed_sequence", "pad_sequence", "unpack_sequence", "unpad_sequence"]


def pad_sequence(sequences: list[Any], batch_first: Any, padding_value: Any, padding_side: Any) -> Tensor:
    """As ``torch.nn.utils.rnn.pad_sequence``."""
    if (
        sequences
        and isinstance(batch_first, bool)
        and type(padding_value) in (int, float)
        and padding_side in ("left", "right")
        and needs_grad(sequences)
        and can_gather(sequences)
    ):
        # PyTorch's own way back through its copies takes a hundred times as long; its way there is the shortest.
        with Undisturbed():
            padded = _gathered_padding(sequences, batch_first, float(padding_value), padding_side == "left")
    else:
        check_one_device(named(sequences), "pad_sequence")
        with quietly(sequences):
            padded = rnn.pad_sequence(sequences, batch_first, padding_value, padding_side)
    born_tensors(padded)
    return padded


def _gathered_padding(sequences: list[Any], batch_first: bool, fill: float, left: bool) -> Tensor:
    lengths: Index = np.array([sequence.shape[0] for sequence in sequences])
    batch, longest = lengths.size, int(lengths.max())
    rows = int(lengths.sum())
    steps = np.arange(longest)
    starts = np.cumsum(lengths) - lengths
    if left:
        skipped = longest - lengths
        index = np.where(steps >= skipped[:, None], steps + (starts - skipped)[:, None], rows)
    else:
        index = np.where(steps < lengths[:, None], steps + starts[:, None], rows)
    if not batch_first:
        index = index.T
    shape = (batch, longest) if batch_first else (longest, batch)
    flat = np.ascontiguousarray(index).reshape(-1)
    return rows_of(sequences, flat, fill if flat.size > rows else None).view(*shape, *sequences[0].shape[1:])


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: Any, padding_value: Any, total_length: Any
) -> tuple[Tensor, Tensor]:
    """As ``torch.nn.utils.rnn.pad_packed_sequence``."""
    result: tuple[Tensor, Tensor] | None = None
    opened = None if _is_quick(sequence[0]) else _opened(sequence)
    if (
        opened is not None
        and isinstance(batch_first, bool)
        and type(padding_value) in (int, float)
        and (total_length is None or (type(total_length) is int and total_length >= opened[0].size))
    ):
        batch_sizes, lengths, places = opened
        longest = batch_sizes.size if total_length is None else total_length
        data = sequence[0]
        rows = data.shape[0]
        with Undisturbed():
            starts = np.cumsum(batch_sizes) - batch_sizes
            steps = np.arange(longest)
            starts = np.concatenate([starts, np.zeros(longest - starts.size, dtype=np.int64)])
            if batch_first:
                index = np.where(steps < lengths[:, None], starts + places[:, None], rows)
            else:
                index = np.where(steps[:, None] < lengths, starts[:, None] + places, rows)
            flat = index.reshape(-1)
            padded = rows_of([data], flat, padding_value if flat.size > rows else None)
            result = padded.view(*index.shape, *data.shape[1:]), from_numpy(lengths)
    if result is None:
        _check_packed(sequence, "pad_packed_sequence")
        with quietly([member for member in sequence if member is not None]):
            result = rnn.pad_packed_sequence(sequence, batch_first, padding_value, total_length)
    born_tensors(result)
    return result


def _is_quick(data: Tensor) -> bool:
    if not can_gather([data]):
        return False
    with Undisturbed():
        return not needs_grad([data]) and not is_wide(data)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """As ``torch.nn.utils.rnn.unpack_sequence``."""
    opened = _opened(packed_sequences)
    if opened is None:
        _check_packed(packed_sequences, "unpack_sequence")
        sequences = rnn.unpack_sequence(packed_sequences)
    else:
        batch_sizes, lengths, places = opened
        with Undisturbed():
            starts = np.cumsum(batch_sizes) - batch_sizes
            ends = np.cumsum(lengths)
            steps: Index = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
            index = starts[steps] + np.repeat(places, lengths)
            sequences = separate([packed_sequences[0]], index, lengths.tolist())
    born_tensors(sequences)
    return sequences


def _opened(packed: PackedSequence) -> tuple[Index, Index, Index] | None:
    """Batch sizes, and length and place of each sequence in the order given; None where PyTorch shall judge."""
    data, batch_sizes, _, unsorted = packed
    if not can_gather([data]):
        return None
    for indices in (batch_sizes, *(() if unsorted is None else (unsorted,))):
        if type(indices) is not Tensor:
            return None
        with Undisturbed():
            if not indices.is_cpu or indices.dtype is not torch.int64 or indices.dim() != 1:
                return None
    with Undisturbed():
        sizes: Index = batch_sizes.numpy()
        if sizes.size == 0 or (sizes[1:] > sizes[:-1]).any() or sizes[-1] <= 0 or int(sizes.sum()) != data.shape[0]:
            return None
        batch = int(sizes[0])
        places: Index = np.arange(batch) if unsorted is None else unsorted.numpy()
        if places.size != batch or (np.bincount(places.clip(0), minlength=batch) != 1).any() or places.min() < 0:
            return None
        lengths = sizes.size - np.searchsorted(sizes[::-1], np.arange(batch), side="right")
        return sizes, lengths.astype(np.int64, copy=False)[places], places


def _check_packed(packed: PackedSequence, what: str) -> None:
    data, _, before, after = packed
    named_members = [("data", data), ("sorted_indices", before), ("unsorted_indices", after)]
    check_one_device([(name, member) for name, member in named_members if member is not None], what)


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: Any) -> list[Tensor]:
    """As ``torch.nn.utils.rnn.unpad_sequence``; lengths may be a list, and nothing is transposed in place."""
    if isinstance(lengths, OwnTensor):
        lengths = lengths.numpy()
    if not isinstance(lengths, Tensor):
        with Undisturbed():
            lengths = torch.as_tensor(lengths)
    counts = _counts(padded_sequences, lengths, batch_first)
    if counts is None:
        check_one_device([("padded_sequences", padded_sequences), ("lengths", lengths)], "unpad_sequence")
        sequences = rnn.unpad_sequence(
            padded_sequences if batch_first else padded_sequences.transpose(0, 1), lengths, batch_first=True
        )
    else:
        with Undisturbed():
            by_sequence = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
            batch, longest = by_sequence.shape[:2]
            kept = np.minimum(counts, longest).clip(0)
            if by_sequence.requires_grad and torch.is_grad_enabled():
                ends = np.cumsum(kept)
                steps: Index = np.arange(int(ends[-1])) - np.repeat(ends - kept, kept)
                which: Index = np.repeat(np.arange(int(batch)), kept)
                if by_sequence.is_contiguous() or not padded_sequences.is_contiguous():
                    rows, index = by_sequence.flatten(0, 1), which * longest + steps
                else:
                    rows, index = padded_sequences.flatten(0, 1), steps * batch + which
                sequences = separate([rows], index, kept.tolist())
            else:
                pairs = zip(by_sequence, kept.tolist(), strict=True)
                sequences = [row[:count].clone(memory_format=torch.contiguous_format) for row, count in pairs]
    born_tensors(sequences)
    return sequences


def _counts(padded: Any, lengths: Tensor, batch_first: Any) -> Index | None:
    """Lengths that are one whole number for each sequence, or None."""
    if type(lengths) is not Tensor or not can_gather([padded]) or padded.dim() < 2 or not padded.numel():
        return None
    with Undisturbed():
        fits = lengths.is_cpu and lengths.dim() == 1 and lengths.numel() == padded.shape[0 if batch_first else 1]
        if not fits or lengths.dtype not in fast_dtypes or lengths.is_floating_point() or lengths.is_complex():
            return None
        return lengths.to(torch.int64).numpy()
