"""Padding PyTorch's packed sequences: what ``torch.nn.utils.rnn`` returns, bit for bit, by the fastest way for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..tensors._alignment import unserved
from ._torch_births import born_fresh, born_tensors
from ._torch_inputs import check_one_device
from ._torch_rows import Index, from_numpy
from ._torch_steps import gathers_padded, kernel_pad, kernel_pad_with_graph, padded_rows
from ._torch_watch import aside, is_plain_cpu, plain_classes, quietly

__all__ = ["check_packed", "opened", "pad_packed_sequence"]

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
