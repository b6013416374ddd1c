"""The storages behind a tensor of any layout, copies of small views, and bytes against budgets."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...scopes.base.errors import DisposedError, DisposeScopeError
from ...scopes.context import innermost_scope
from ..arena.budgets import BUDGETS, Charge, refused
from .disposal import PENDING, DisposedTorchTensor, swap

__all__ = [
    "charges_of",
    "make_compact",
    "components_of",
    "refusal_of",
    "storage_of",
    "storages_behind",
    "used_bytes",
]

_COMPRESSED_BY_ROWS: Final = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED: Final = (*_COMPRESSED_BY_ROWS, torch.sparse_csc, torch.sparse_bsc)


_storage: Final[Any] = torch._C.TensorBase.untyped_storage


def storage_of(tensor: Any) -> Any:
    """Return the storage of a tensor; None where PyTorch cannot return one.

    To be called where function modes are disabled.
    """
    try:
        return _storage(tensor)
    except RuntimeError:  # a tensor in a transform, a sparse one, an opaque one such as mkldnn's
        return None


def storages_behind(tensor: Any) -> Iterator[tuple[Hashable, int]]:
    """Yield identity and number of bytes of each storage behind a tensor.

    An identity is valid while the storage lives. Nothing is yielded for a tensor on the meta
    device, a ``FakeTensor`` or a disposed tensor. To be called where function modes are disabled,
    since it reads attributes.
    """
    if type(tensor) is DisposedTorchTensor:
        return
    # Another thread may dispose it meanwhile.
    with suppress(DisposedError):
        yield from _storages_of_live(tensor)


def _storages_of_live(tensor: Any) -> Iterator[tuple[Hashable, int]]:
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from storages_behind(getattr(tensor, name))
        return
    for part in components_of(tensor):
        storage = storage_of(part)
        if storage is None:
            yield ("torch", "opaque", id(part)), part.numel() * part.element_size()
        elif storage.device.type != "meta":
            yield ("torch", storage._cdata), storage.nbytes()


def used_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's storages that its elements take.

    An element that a view repeats counts once. Of a tensor that is made of several tensors (a
    sparse one, one of a wrapper subclass) all bytes of the storages count. To be called where
    function modes are disabled, since it reads attributes.
    """
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
        return sum(dict(storages_behind(tensor)).values())
    if not tensor.numel() or tensor.is_meta:
        return 0
    elements = span = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            elements *= size
            span += (size - 1) * stride
    # A view with overlapping windows counts some elements more than once: `span` is the limit.
    return int(min(elements, span) * tensor.element_size())


def components_of(tensor: Any) -> list[Any]:
    """Return the dense tensors that a sparse tensor is made of; for others the tensor itself.

    To be called where function modes are disabled.
    """
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in _COMPRESSED_BY_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in _COMPRESSED:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


# Giving a small view of a big tensor memory of its own.


_C: Final[Any] = torch._C


def make_compact(tensor: Any) -> None:
    """Copy the memory of a tensor that is a view and uses less memory than it pins.

    The tensor keeps its values and its graph. Graphs, views and exports that have the old
    implementation keep it.

    Raises
    ------
    DisposeScopeError
        C++ refers weakly to the implementation, as after ``retain_grad()``. The tensor is left as
        it is.
    """
    with _C.DisableTorchFunction():
        cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
            return
        if tensor.device.type == "meta" or tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes():
            return
        with torch.inference_mode(tensor.is_inference()), torch.set_grad_enabled(not tensor.is_leaf):
            copy = tensor.clone()
        if tensor.is_leaf and tensor.requires_grad:
            copy.requires_grad_()
            copy.grad = tensor.grad
        try:
            swap(tensor, copy)
            # Another thread may compute with the old implementation.
            PENDING.hold(copy)
        except RuntimeError as error:
            raise DisposeScopeError(
                f"a torch.Tensor {tuple(tensor.shape)} {tensor.dtype} cannot be made compact, because its gradient is "
                f"retained (retain_grad()) or C++ refers to it: move out a clone of it ({error})"
            ) from None


# PyTorch's tensors against the budgets of scopes: the bytes of each new storage, until the storage
# is gone.


_Undisturbed: Final = torch._C.DisableTorchFunction


def refusal_of(fresh: list[Any], given: Any) -> MemoryError | None:
    """Count the storages of tensors that a call has returned, where a scope with a budget is open.

    Parameters
    ----------
    fresh : list of Tensor
        The new tensors.
    given : tuple
        The arguments of the call. A tensor that shares memory with one of them does not count: it
        is a view, or was written in place.

    Returns
    -------
    MemoryError or None
        The error to raise where a budget refuses. Then nothing is counted.
    """
    scope = innermost_scope()
    if scope is None:
        return None
    counted: list[Hashable] = []
    with _Undisturbed():
        for tensor in fresh:
            storage = _memory_of(tensor)
            if storage is None:
                continue
            key = _key_of(storage)
            if key in BUDGETS.charges or _was_there(storage, given):
                continue
            nbytes = storage.nbytes()
            if BUDGETS.charge(scope, storage, key, nbytes) or (
                _settle() and BUDGETS.charge(scope, storage, key, nbytes)
            ):
                counted.append(key)
                continue
            BUDGETS.forget(counted)
            described = f"torch.Tensor of shape {tuple(tensor.shape)} and type {tensor.dtype}"
            del tensor, storage
            return refused(described, nbytes)
    return None


def _settle() -> bool:
    """Give back the memory of disposed tensors whose wait is over; return whether any waited."""
    waited = bool(PENDING.batches)
    PENDING.settle()
    return waited


def charges_of(tensor: Any) -> list[Charge]:
    """Return the charges for a tensor: they move to another scope together with it."""
    if not BUDGETS.charges:
        return []
    with _Undisturbed():
        storage = _memory_of(tensor)
    entry = None if storage is None else BUDGETS.charges.get(_key_of(storage))
    return [] if entry is None else [entry]


def _memory_of(tensor: Tensor) -> Any:
    """Return the storage of a dense tensor; None for others, and on the meta device."""
    if type(tensor) is not Tensor and is_traceable_wrapper_subclass(tensor):
        # Its storage is a placeholder. The tensors in it have storages.
        return None
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
            # The tensor shows an array's memory: the arena counts that, if it is the arena's.
            array: Any = item  # pyright: ignore[reportUnknownVariableType] (its dtype)
            start: int = array.__array_interface__["data"][0]
            if start <= address < start + max(array.nbytes, 1):
                return True
    return False


def _leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts."""
    children: list[Any]
    if isinstance(tree, dict):
        children = list(tree.values())  # pyright: ignore[reportUnknownArgumentType] (from Any)
    elif isinstance(tree, (tuple, list)):
        children = list(tree)  # pyright: ignore[reportUnknownArgumentType] (from Any)
    else:
        return [tree]
    return [leaf for child in children for leaf in _leaves(child)]
