"""``torch.Tensor`` as a kind of resource."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import torch
from torch import Tensor

from ..scopes._devices import CURRENT_INDEX
from ..scopes._kinds import Kind, add_kind
from ._graph_policy import TORCH_GRAPHS
from ._torch_births import see_births
from ._torch_compiled import watch_compiled_functions
from ._torch_disposal import DisposedTorchTensor, drop, last_known
from ._torch_exclusions import exclude_what_models_own
from ._torch_fast_paths import keep_fast_paths
from ._torch_swaps import allow_swaps
from ._torch_transforms import watch_transforms

__all__ = ["KIND", "teach"]

# The modes of this library and of others see attributes too; inside of this they do not.
_Undisturbed: Final = torch._C.DisableTorchFunction  # pyright: ignore[reportPrivateUsage]


def _storages(tensor: Any) -> list[tuple[Hashable, int]]:
    with _Undisturbed():
        return _storages_of(tensor)


def _storages_of(tensor: Any) -> list[tuple[Hashable, int]]:
    if type(tensor) is DisposedTorchTensor:
        return []
    found: list[tuple[Hashable, int]] = []
    for part in _parts(tensor):
        try:
            storage = part.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # An opaque implementation, such as that of mkldnn, has no storage that could be asked.
            found.append((("torch", id(part)), part.numel() * part.element_size()))
            continue
        nbytes = 0 if storage.device.type == "meta" else storage.nbytes()
        found.append((("torch", storage._cdata), nbytes))
    return found


def _parts(tensor: Any) -> list[Any]:
    """The dense tensors that a tensor is made of."""
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if layout is torch.jagged:
        return [tensor._values, tensor._offsets]
    return [tensor]


def _device(tensor: Any) -> object:
    with _Undisturbed():
        return tensor.device


def _describe(tensor: Any) -> str:
    cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType]
    if cls is DisposedTorchTensor:
        return last_known(tensor)
    name = "torch.Tensor" if cls is Tensor else cls.__qualname__
    with _Undisturbed():
        shape = "" if tensor.is_nested else f" {tuple(tensor.shape)}"
        return f"{name}{shape} {tensor.dtype}"


def _layout(tensor: Any) -> tuple[tuple[int, ...], str, int] | None:
    if type(tensor) is DisposedTorchTensor:
        return None
    with _Undisturbed():
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()


def _is_disposed(tensor: Any) -> bool:
    return type(tensor) is DisposedTorchTensor


KIND: Final = Kind(
    cls=Tensor,
    name="torch.Tensor",
    release=drop,
    storages=_storages,
    device=_device,
    describe=_describe,
    is_disposed=_is_disposed,
    layout=_layout,
    graphs=TORCH_GRAPHS,
)
"""The kind of ``torch.Tensor`` and of its subclasses."""


def teach() -> None:
    """Register the kind, and see births from now on."""
    add_kind(KIND)
    CURRENT_INDEX["cuda"] = torch.cuda.current_device
    exclude_what_models_own()
    watch_compiled_functions()
    watch_transforms()
    keep_fast_paths()
    allow_swaps()
    see_births(KIND)
