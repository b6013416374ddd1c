"""What scopes ask of the graphs behind PyTorch tensors that leave them: is there one, refuse it, cut it off."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import Any, Final, final

import torch
from torch import Tensor

from ...scopes.errors import GraphRetainedError
from ...scopes.identity import Entry, story_of
from ...scopes.sites import mark_of, site_of
from .disposal import PENDING
from .graph import site_of_node, summarise
from .graph_walk import walk_graph

__all__ = [
    "TORCH_GRAPHS",
    "TorchGraphs",
]

_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction
_swap: Final[Callable[[Tensor, Tensor], None]] = _C._swap_tensor_impl


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
            A view that C++ refers to (``retain_grad()`` was called on it): PyTorch lets nobody detach that in place.
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

    The old implementation stays whole for the graph that saved it, for views and for double backward; ``detach_()``
    would take its history from them as well, and refuses views.
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
