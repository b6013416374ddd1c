"""Births of what the sequence functions make of PyTorch's tensors: as a whole, where a scope is open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..scopes._births import born, born_composite, born_whole
from ..scopes._composites import gathered
from ..scopes._current import CURRENT, current_scope
from ..scopes._entry import LIVE, entry_of
from ..tensors._charges import BUDGETED
from ..tensors._torch import KIND as TENSOR
from ..tensors._torch_charges import refusal_of
from ..tensors._torch_makers import births_now
from ..tensors._torch_results import births_in
from ._torch_packed import TORCH_PACKED_SEQUENCE

__all__ = ["born_fresh", "born_fresh_packed", "born_packed", "born_tensors"]


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


def born_packed(packed: PackedSequence) -> PackedSequence:
    """Record the birth of a packed sequence where a scope is open: one resource, with its tensors as members."""
    scope = current_scope()
    if scope is None or not births_now():
        return packed
    if entry_of(packed[0]) is None:
        born_composite(packed, TORCH_PACKED_SEQUENCE)
    else:
        # The mode has seen its tensors already.
        tuple(gathered(packed, scope))
    return packed


def born_tensors(tensors: Any) -> None:
    """Record the births of a tensor, or of those in a list or tuple, where a scope is open and has not seen them."""
    if CURRENT.get() is not None:
        refusal = births_in(tensors)
        if refusal is not None:
            raise refusal
