"""``torch.Tensor`` as a kind of resource."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from ...scopes.kinds import Kind, when_watched
from .disposal import DisposedTorchTensor, allow_swaps, drop, last_known
from .exclusions import (
    exclude_what_models_own,
    keep_fast_paths,
    keep_what_distributions_compute,
    watch_compiled_functions,
    watch_loaders,
    watch_traces,
    watch_transforms,
)
from .graph_policy import TORCH_GRAPHS
from .storages import charges_of, make_compact, storages_behind, used_bytes
from .threads import see_births, watch_threads

if TYPE_CHECKING:
    from ...scopes.scope import DisposeScope

__all__ = [
    "KIND",
    "current_cuda_index",
    "install",
]

# The modes of this library and of others see attributes too; inside of this they do not.
_Undisturbed: Final = torch._C.DisableTorchFunction


def _storages(tensor: Any) -> list[tuple[Hashable, int]]:
    with _Undisturbed():
        return list(storages_behind(tensor))


def _device(tensor: Any) -> object:
    with _Undisturbed():
        return tensor.device


def _describe(tensor: Any) -> str:
    cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
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
        if tensor.is_nested:
            return None
        return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), used_bytes(tensor)


def _is_disposed(tensor: Any) -> bool:
    return type(tensor) is DisposedTorchTensor


def _inner(tensor: Any) -> list[Any]:
    """The tensors that a tensor of a subclass keeps as attributes: what wrapper subclasses are made of."""
    cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is Tensor or cls is Parameter or cls is DisposedTorchTensor:
        return []
    attributes: dict[str, Any] = object.__getattribute__(tensor, "__dict__")
    return [value for value in attributes.copy().values() if issubclass(type(value), Tensor)]


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
    memory=charges_of,
    compact=make_compact,
    inner=_inner,
)
"""The kind of ``torch.Tensor`` and of its subclasses."""


def current_cuda_index() -> int:
    """The index that ``"cuda"`` stands for: 0 until CUDA is in use, which asking for a name shall not start."""
    cuda: Any = torch.cuda
    return cuda.current_device() if cuda.is_initialized() else 0


def _watch_memory() -> None:
    from .watching import watch_memory

    watch_memory(KIND)


def install() -> tuple[Callable[[DisposeScope], object], Callable[[DisposeScope], object]]:
    """See births from now on. Returns what is to be called whenever a scope is entered or left."""
    exclude_what_models_own()
    watch_compiled_functions()
    watch_transforms()
    watch_traces()
    keep_what_distributions_compute()
    watch_loaders()
    watch_threads()
    keep_fast_paths()
    allow_swaps()
    hooks = see_births(KIND)
    when_watched(_watch_memory)
    return hooks
