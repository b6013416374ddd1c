"""``torch.Tensor`` as a kind of resource."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from sys import _getframe
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from ...scopes.errors import GraphRetainedError
from ...scopes.identity import Entry, story_of
from ...scopes.kinds import Kind, when_watched
from ...scopes.sites import mark_of, site_of
from .disposal import PENDING, DisposedTorchTensor, allow_swaps, drop, last_known
from .exclusions import (
    exclude_what_models_own,
    keep_fast_paths,
    keep_what_distributions_compute,
    watch_compiled_functions,
    watch_loaders,
    watch_traces,
    watch_transforms,
)
from .graph import site_of_node, summarise
from .graph_walk import walk_graph
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
_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction
_swap: Final[Callable[[Tensor, Tensor], None]] = _C._swap_tensor_impl


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


# What scopes ask of the graphs behind tensors that leave them: is there one, refuse it, cut it off.


@final
class TorchGraphs:
    """The `Graphs` of PyTorch tensors: see `disposescope.scopes.options`."""

    __slots__ = ()

    def carried_by(self, resource: Tensor, /) -> bool:
        """Whether a tensor was computed under autograd; asked without making a Python object of its node."""
        with _Undisturbed():
            return resource.requires_grad and not resource.is_leaf

    def refusal(self, entry: Entry, leaving: str, /) -> GraphRetainedError:
        """The error that names the tensor, the bytes, the nodes, the ops and the line."""
        tensor = entry()
        described = entry.kind.describe(tensor)
        graph = walk_graph([tensor])
        summary = summarise(graph, with_modules=False)
        born = next((site for node in graph.ends if (site := site_of_node(node)) is not None), None)
        story = story_of(entry) or ("" if born is None else f" (born at {born})")
        told = story.partition("born at ")[2].partition(", disposed")[0].removesuffix(")")
        here = str(site_of(mark_of(_getframe(1))))
        return GraphRetainedError(
            f'{leaving} with graph="error": {described}{story}, moved out at {here}, carries an autograd graph of '
            f"{summary.nodes:,} nodes from {summary.first_op} to {summary.last_op} that pins {summary.nbytes:,} bytes; "
            "move out tensor.detach() or a number (loss.item()), compute under torch.no_grad(), or open the scope with "
            'graph="detach"',
            resource=described,
            nbytes=summary.nbytes,
            nodes=summary.nodes,
            first_op=summary.first_op or "",
            last_op=summary.last_op or "",
            site=told or here,
        )

    def cut(self, resource: Tensor, /) -> _Swap | _InPlace:
        """Detach a tensor without touching what others hold: see `_Swap`.

        Raises
        ------
        GraphRetainedError
            A view that C++ refers to (``retain_grad()`` was called on it): PyTorch lets nobody
            detach that in place.
        """
        with _Undisturbed():
            detached = resource.detach()
            try:
                _swap(resource, detached)
            except RuntimeError as error:
                if resource._is_view():
                    raise GraphRetainedError(
                        f"a view of shape {tuple(resource.shape)} on which retain_grad() was called cannot be detached "
                        "in place; move out view.detach() instead",
                    ) from error
                return _InPlace(resource)
            return _Swap(resource, detached)


@final
class _Swap:
    """A tensor whose implementation has been exchanged for one without history.

    The old implementation stays whole for the graph that saved it, for views and for double
    backward; ``detach_()`` would take its history from them as well, and refuses views.
    """

    __slots__ = ("_detached", "_tensor")

    def __init__(self, tensor: Tensor, detached: Tensor) -> None:
        self._tensor = tensor
        self._detached = detached

    def finish(self) -> None:
        # Another thread may compute with the old implementation.
        PENDING.hold(self._detached)
        del self._tensor, self._detached

    def undo(self) -> None:
        _swap(self._tensor, self._detached)


@final
class _InPlace:
    """A tensor whose implementation must stay, because C++ refers to it: it is detached at the last moment."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def finish(self) -> None:
        with _Undisturbed():
            self._tensor.detach_()

    def undo(self) -> None:
        """Nothing has been done yet."""


TORCH_GRAPHS: Final = TorchGraphs()
"""What the kind of PyTorch tensors gives as its `graphs`."""

# The kind.


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
