"""The storages behind a PyTorch tensor of any layout."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._torch_disposal import DisposedTorchTensor

__all__ = ["storage_of", "storages_behind", "used_bytes"]

_COMPRESSED_BY_ROWS: Final = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED: Final = (*_COMPRESSED_BY_ROWS, torch.sparse_csc, torch.sparse_bsc)


_storage: Final[Any] = torch._C.TensorBase.untyped_storage


def storage_of(tensor: Any) -> Any:
    """The storage of a tensor; None where it has none that could be asked for.

    To be called where no function mode is asked.
    """
    try:
        return _storage(tensor)
    except RuntimeError:  # a tensor inside of a transform, a sparse one, an opaque one such as mkldnn's
        return None


def storages_behind(tensor: Any) -> Iterator[tuple[Hashable, int]]:
    """The storages behind a tensor, each as an identity that holds while it lives and a number of bytes.

    A tensor on the meta device has none; nor has a ``FakeTensor``, nor one that was disposed. To be called where no
    function mode is asked, since it reads attributes.
    """
    if type(tensor) is DisposedTorchTensor:
        return
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from storages_behind(getattr(tensor, name))
        return
    for part in _parts(tensor):
        storage = storage_of(part)
        if storage is None:
            yield ("torch", "opaque", id(part)), part.numel() * part.element_size()
        elif storage.device.type != "meta":
            yield ("torch", storage._cdata), storage.nbytes()


def used_bytes(tensor: Any) -> int:
    """The bytes of a tensor's storages that its elements are in; what a view repeats counts once.

    Of a tensor that is made of several (a sparse one, one with a wrapper subclass) all its storages are used. To be
    called where no function mode is asked, since it reads attributes.
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
    # Windows that overlap have more elements than there is room for between the first and the last.
    return int(min(elements, span) * tensor.element_size())


def _parts(tensor: Any) -> list[Any]:
    """The dense tensors that a tensor is made of."""
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in _COMPRESSED_BY_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in _COMPRESSED:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]
