"""PyTorch's tensors against the budgets of scopes: the bytes of each new storage, until the storage is gone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..scopes._current import current_scope
from ._charges import CHARGES, Charge, charge, refused
from ._torch_storage import storage_of

__all__ = ["charges_of", "refusal_of"]

_Undisturbed: Final = torch._C.DisableTorchFunction


def refusal_of(fresh: list[Any], given: Any) -> MemoryError | None:
    """Count the storages of tensors that a call has returned, where a scope with a budget is open.

    Parameters
    ----------
    fresh : list of Tensor
        What is about to be born.
    given : tuple
        The arguments of the call. What shares memory with one of them is a view, or was written in place.

    Returns
    -------
    MemoryError or None
        What to raise, where a budget refuses. Nothing is counted then.
    """
    scope = current_scope()
    if scope is None:
        return None
    counted: list[Hashable] = []
    with _Undisturbed():
        for tensor in fresh:
            storage = _memory_of(tensor)
            if storage is None:
                continue
            key = _key_of(storage)
            if key in CHARGES or _was_there(storage, given):
                continue
            nbytes = storage.nbytes()
            if charge(scope, storage, key, nbytes):
                counted.append(key)
                continue
            for key in counted:
                CHARGES.pop(key).drop()
            described = f"torch.Tensor of shape {tuple(tensor.shape)} and type {tensor.dtype}"
            del tensor, storage
            return refused(described, nbytes)
    return None


def charges_of(tensor: Any) -> list[Charge]:
    """What is counted for a tensor, so that it moves along."""
    if not CHARGES:
        return []
    with _Undisturbed():
        storage = _memory_of(tensor)
    entry = None if storage is None else CHARGES.get(_key_of(storage))
    return [] if entry is None else [entry]


def _memory_of(tensor: Tensor) -> Any:
    """The storage of a dense tensor in the memory of this machine or of a device; None for others."""
    storage = storage_of(tensor)
    return None if storage is None or storage.device.type == "meta" else storage


def _key_of(storage: Any) -> Hashable:
    return "torch", storage._cdata


def _was_there(storage: Any, given: object) -> bool:
    address = storage.data_ptr()
    for item in _leaves(given):
        if isinstance(item, Tensor):
            shared = _memory_of(item)
            if shared is not None and shared._cdata == storage._cdata:
                return True
        elif isinstance(item, np.ndarray):
            # The tensor is a view of an array: the arena counts it, or nobody.
            array: Any = item  # pyright: ignore[reportUnknownVariableType] (its dtype)
            start: int = array.__array_interface__["data"][0]
            if start <= address < start + max(array.nbytes, 1):
                return True
    return False


def _leaves(tree: Any) -> list[Any]:
    """What is in nested tuples, lists and dicts."""
    children: list[Any]
    if isinstance(tree, dict):
        children = list(tree.values())  # pyright: ignore[reportUnknownArgumentType] (from Any)
    elif isinstance(tree, (tuple, list)):
        children = list(tree)  # pyright: ignore[reportUnknownArgumentType] (from Any)
    else:
        return [tree]
    return [leaf for child in children for leaf in _leaves(child)]
