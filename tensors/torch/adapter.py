"""``torch.Tensor`` as a kind of resource."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from sys import _getframe
from types import MemberDescriptorType
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.nn.parameter import Parameter

from ...scopes.base.errors import GraphRetainedError
from ...scopes.base.process import PATCHES, bytes_text
from ...scopes.base.sites import mark_of, site_of
from ...scopes.identity import LIVE, line_of_birth, story_of
from ...scopes.kinds import Kind, Layout, kind_of, mro_of, space_of
from ...scopes.ownership import compose_of
from ..patches import TORCH_NESTED_TENSORS
from .disposal import (
    COUNTS_CPLUSPLUS,
    PENDING,
    DisposedTorchTensor,
    allow_swaps,
    drop,
    is_owned_by_cplusplus,
    last_known,
    swap,
)
from .exclusions import (
    exclude_what_models_own,
    keep_fast_paths,
    keep_what_contexts_hold,
    keep_what_distributions_compute,
    watch_compiled_functions,
    watch_loaders,
    watch_traces,
    watch_transforms,
)
from .graphs.graph import site_of_node, summarise
from .graphs.walk import walk_graph
from .storages import charges_of, make_compact, storages_behind, used_bytes
from .threads import see_births, watch_threads

__all__ = [
    "KIND",
    "current_cuda_index",
    "install",
]

_C: Final[Any] = torch._C
# A context in which reading an attribute calls no function mode.
_Undisturbed: Final[Any] = _C.DisableTorchFunction
_use_count: Final[Callable[[Tensor], int]] = _C.TensorBase._use_count


# The graph of a tensor that leaves its scope: whether there is one, how it is refused or cut off.


@final
class TorchGraphs:
    """The `Graphs` of PyTorch tensors: see `disposescope.scopes.kinds`."""

    __slots__ = ()

    def carried_by(self, resource: Tensor, /) -> bool:
        """Return whether a tensor was computed under autograd.

        Does not make a Python object of the tensor's node.
        """
        with _Undisturbed():
            try:
                return resource.requires_grad and not resource.is_leaf
            except RuntimeError:
                # PyTorch raises for some views whose base was changed in place: see `walk.node_of`.
                return False

    def refusal(self, resource: Tensor, leaving: str, option: str, /) -> GraphRetainedError:
        """Return the error that names the tensor, the bytes, the nodes, the ops and the line."""
        entry = LIVE.get(id(resource))
        kind = kind_of(resource)
        assert kind is not None  # a method of its `graphs` is running
        described = kind.describe(resource)
        graph = walk_graph([resource])
        summary = summarise(graph, with_modules=False)
        born = next((site for node in graph.ends if (site := site_of_node(node)) is not None), None)
        born_at = line_of_birth(entry) or ("" if born is None else str(born))
        story = story_of(entry) or (f" (born at {born_at})" if born_at else "")
        here = str(site_of(mark_of(_getframe(1))))
        return GraphRetainedError(
            f'{leaving} with graph="{option}": {described}{story}, moved out at {here}, carries an autograd graph of '
            f"{summary.nodes:,} nodes from {summary.first_op} to {summary.last_op} that pins "
            f"{bytes_text(summary.nbytes)}; move out tensor.detach() or a number (loss.item()), compute under "
            'torch.no_grad(), or open the scope with graph="detach"',
            resource=described,
            nbytes=summary.nbytes,
            nodes=summary.nodes,
            first_op=summary.first_op or "",
            last_op=summary.last_op or "",
            site=born_at or here,
        )

    def cut(self, resource: Tensor, /) -> _Swap | _InPlace:
        """Detach a tensor; graphs and views keep the old implementation: see `_Swap`.

        Raises
        ------
        GraphRetainedError
            The tensor is a view that C++ refers to (``retain_grad()`` was called on it). PyTorch
            cannot detach a view in place.
        """
        with _Undisturbed():
            detached = resource.detach()
            try:
                swap(resource, detached)
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

    The graph that saved the old implementation, its views and double backward still use it with its
    history. ``detach_()`` would remove the history for them too, and refuses views.
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
        swap(self._tensor, self._detached)


@final
class _InPlace:
    """A tensor whose implementation must stay, because C++ refers to it.

    It is detached only in `finish`, because that cannot be undone.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def finish(self) -> None:
        with _Undisturbed():
            self._tensor.detach_()

    def undo(self) -> None:
        """Nothing has been done yet."""


GRAPHS: Final = TorchGraphs()
"""The attribute `graphs` of the kind of PyTorch tensors."""

# The kind.


@final
class TorchKind(Kind):
    """The kind of ``torch.Tensor`` and of its subclasses."""

    cls = Tensor
    name = "torch.Tensor"
    graphs = GRAPHS

    def release(self, resource: Any, /) -> None:
        """Dispose the handle."""
        drop(resource)

    def storages(self, resource: Any, /) -> list[tuple[Hashable, int]]:
        """Return the storages behind a tensor: several for a sparse one."""
        with _Undisturbed():
            return list(storages_behind(resource))

    def device(self, resource: Any, /) -> object:
        """Return the ``torch.device``."""
        with _Undisturbed():
            return resource.device

    def describe(self, resource: Any, /) -> str:
        """Return class, shape and dtype; of a disposed tensor, those that it had."""
        cls: Any = type(resource)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is DisposedTorchTensor:
            return last_known(resource)
        name = "torch.Tensor" if cls is Tensor else cls.__qualname__
        with _Undisturbed():
            shape = "" if resource.is_nested else f" {tuple(resource.shape)}"
            return f"{name}{shape} {resource.dtype}"

    def is_disposed(self, resource: Any, /) -> bool:
        """Return whether it has been disposed."""
        return type(resource) is DisposedTorchTensor

    def layout(self, resource: Any, /) -> Layout | None:
        """Return shape, dtype and used bytes; None for nested tensors."""
        if type(resource) is DisposedTorchTensor:
            return None
        with _Undisturbed():
            if resource.is_nested:
                return None
            return tuple(resource.shape), str(resource.dtype).removeprefix("torch."), used_bytes(resource)

    def memory(self, resource: Any, /) -> Iterable[object]:
        """Return the charges by which budgets count it."""
        return charges_of(resource)

    def library_references(self, resource: Any, /) -> int:
        """Return 1 where C++ refers to a tensor too, such as a view or a graph, and 0 otherwise.

        All of C++ counts as one reference to the Python object.
        """
        # By functions that do not use the tensor's class: another thread may dispose it now.
        with _Undisturbed():
            return int(_use_count(resource) > 1 if COUNTS_CPLUSPLUS else is_owned_by_cplusplus(resource))

    def copy_compact(self, resource: Any, /) -> object:
        """Give a view memory of its own."""
        make_compact(resource)
        return resource

    def inner(self, resource: Any, /) -> list[Any]:
        """Return the tensors that a tensor of a subclass keeps as attributes.

        Wrapper subclasses are made of them.
        """
        cls: Any = type(resource)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is Tensor or cls is Parameter or cls is DisposedTorchTensor:
            return []
        attributes: dict[str, Any] = object.__getattribute__(resource, "__dict__")
        values: list[Any] = [*attributes.values(), *_values_of_slots(resource, cls)]
        # A nested tensor keeps its longest and shortest row in a dict.
        dicts: list[dict[Any, Any]] = [value for value in values if type(value) is dict]
        values += [inside for each in dicts for inside in list(each.values())]
        return [value for value in values if issubclass(type(value), Tensor)]


def _values_of_slots(resource: object, cls: type) -> list[object]:
    """Return the values of the slots of a subclass: ``DTensor`` has its shard in one."""
    values: list[object] = []
    for base in mro_of(cls):
        if base is Tensor:
            break
        for member in space_of(base).values():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):
                    values.append(member.__get__(resource))
    return values


KIND: Final = TorchKind()


def current_cuda_index() -> int:
    """Return the index of the device ``"cuda"``: 0 before CUDA is in use. Does not start CUDA."""
    cuda: Any = torch.cuda
    return cuda.current_device() if cuda.is_initialized() else 0


# A jagged nested tensor is one resource: a wrapper around its values, offsets and lengths, which
# `__init__` is passed. The results of computing with it have the same tensor of offsets.


def compose_nested_tensors() -> None:
    """Make one resource of each jagged nested tensor and the tensors in it, from now on."""
    PATCHES.replace(TORCH_NESTED_TENSORS, NestedTensor, "__init__", _composing)


def _composing(initialise: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialise)
    def __init__(self: Any, values: Any, offsets: Any, *, lengths: Any = None, **options: Any) -> None:
        initialise(self, values, offsets, lengths=lengths, **options)
        # Dynamo traces this code, and replaces `is_compiling()` by a constant.
        if not torch.compiler.is_compiling() and id(self) in LIVE:
            compose_of(self, (values, offsets, lengths, *self._metadata_cache.values()))

    return __init__


def check_disposal() -> None:
    """Check with a new tensor that disposing works with this PyTorch.

    Raises
    ------
    RuntimeError
        The tensor is not disposed afterwards, or its view has changed.
    """
    with _Undisturbed(), _C._DisableTorchDispatch():
        tensor = torch.ones(2, device="cpu")
        view: Any = tensor[:1]
        drop(tensor)
        if type(tensor) is not DisposedTorchTensor or view.tolist() != [1.0]:
            raise RuntimeError("a tensor that was disposed is not dead, or its view is not what it was")


def install() -> None:
    """See births from now on. `threads` must be told of each scope that is entered or left.

    Each step can be repeated: after an interrupt all of them are.
    """
    exclude_what_models_own()
    watch_compiled_functions()
    watch_transforms()
    watch_traces()
    keep_what_distributions_compute()
    keep_what_contexts_hold()
    compose_nested_tensors()
    watch_loaders()
    watch_threads()
    keep_fast_paths()
    allow_swaps()
    see_births(KIND)
