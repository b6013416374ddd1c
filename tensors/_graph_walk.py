"""The walk through an autograd graph: its nodes, and the memory that they saved for ``backward()``.

Nothing is unpacked: what a node saved is read as it lies there (``SavedTensor.data``), so no hook of the user runs,
nothing is recomputed or fetched back from where it was offloaded to, and what was changed in place since is counted all
the same.
Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors
"""

from __future__ import annotations

import gc
import types
from collections.abc import Hashable, Iterator
from typing import Any, Final, final

import torch

from ._graph_guard import guard_release
from ._torch_storage import storages_behind

__all__ = ["ACCUMULATE", "Graph", "saved_under", "walk_graph"]

ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
"""The node at the end of every path: where the gradient of a leaf is added up."""

_C: Final[Any] = torch._C
_RAW: Final = "_raw_saved_"
# Nodes written in C++ that show nothing of what they saved: ops of extensions, and writes into a view.
_OPAQUE: Final = frozenset({"CppFunction", "CopySlices"})
_NO_CONTAINER: Final = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
_SEARCH_LIMIT: Final = 1000

# Of a type that a Python number becomes, a smaller one of the same sort.
_SMALLER: Final = {
    torch.float64: torch.tensor(0, dtype=torch.float16, device="cpu"),
    torch.int64: torch.tensor(0, dtype=torch.int8, device="cpu"),
    torch.complex128: torch.tensor(0, dtype=torch.complex64, device="cpu"),
}


@final
class Graph:
    """The nodes behind some tensors, and the storages that each of them was the first to show.

    Short-lived: it holds the nodes, and with them what they saved.

    Attributes
    ----------
    ends : list
        The nodes that made the tensors themselves.
    nodes : dict
        The nodes by ``id``, those nearest to the tensors first.
    edges : dict
        For each node, the ``id`` of the nodes whose results it takes its gradient on to.
    bytes_of : dict
        For each node that saved something, the bytes of the storages that no earlier one had saved.
    attribute_bytes : int
        The bytes of tensors that custom functions keep as attributes of their ``ctx`` and that nothing saved. PyTorch
        does not know of them, and ``backward()`` does not free them.
    opaque : int
        How many nodes do not show what they saved.
    """

    __slots__ = ("attribute_bytes", "bytes_of", "edges", "ends", "nodes", "opaque")

    ends: list[Any]

    nodes: dict[int, Any]
    edges: dict[int, list[int]]
    bytes_of: dict[int, int]
    attribute_bytes: int
    opaque: int

    def __init__(self, ends: list[Any]) -> None:
        self.ends = ends
        self.nodes = {}
        self.edges = {}
        self.bytes_of = {}
        self.attribute_bytes = 0
        self.opaque = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all storages that the nodes saved, each storage once."""
        return sum(self.bytes_of.values())


def walk_graph(roots: list[Any]) -> Graph:
    """The graph behind some tensors, with what its nodes saved.

    Parameters
    ----------
    roots : list of torch.Tensor
        Live tensors.
    """
    with _C.DisableTorchFunction(), torch.no_grad():
        graph = Graph([node for root in roots if (node := root.grad_fn) is not None])
        _collect(graph)
        _measure(graph)
    guard_release(graph.nodes, graph.edges)
    return graph


def _collect(graph: Graph) -> None:
    nodes, edges = graph.nodes, graph.edges
    pending = graph.ends[::-1]
    while pending:
        node = pending.pop()
        key = id(node)
        if key in nodes:
            continue
        # Kept until the end of the walk: an id is only as good as the object is alive.
        nodes[key] = node
        below = [child for child, _ in node.next_functions if child is not None]
        edges[key] = [id(child) for child in below]
        pending.extend(child for child in reversed(below) if id(child) not in nodes)


def _measure(graph: Graph) -> None:
    names: dict[type, list[str]] = {}
    found: dict[Hashable, int] = {}
    contexts: list[object] = []
    for key, node in graph.nodes.items():
        cls: Any = type(node)  # pyright: ignore[reportUnknownVariableType] (from Any)
        raw = names.get(cls)
        if raw is None:
            raw = names[cls] = [name for name in dir(cls) if name.startswith(_RAW)]
        if cls.__name__ in _OPAQUE:
            graph.opaque += 1
        if issubclass(cls, torch.autograd.function.BackwardCFunction) and vars(node):
            contexts.append(node.__dict__)
        before = len(found)
        fresh = 0
        for name in raw:
            for tensor in saved_under(node, name):
                for identity, nbytes in storages_behind(tensor):
                    if identity not in found:
                        found[identity] = nbytes
                        fresh += nbytes
        if len(found) > before:
            graph.bytes_of[key] = fresh
    for attributes in contexts:
        for tensor in _tensors_in(attributes):
            for identity, nbytes in storages_behind(tensor):
                if identity not in found:
                    found[identity] = nbytes
                    graph.attribute_bytes += nbytes


def saved_under(node: Any, name: str) -> Iterator[Any]:
    """The tensors that a node saved under a name."""
    try:
        saved: Any = getattr(node, name)
    except RuntimeError:
        # Freed by a backward(): the only thing that these attributes raise for.
        return
    several: list[Any] = list(saved) if isinstance(saved, tuple) else [saved]  # pyright: ignore[reportUnknownArgumentType] (from Any)
    for one in several:
        if one is not None:
            yield from _tensors_of(one)


def _tensors_of(saved: Any) -> Iterator[Any]:
    """The tensors behind one ``SavedTensor``; none where it was freed, or packed into something without a tensor."""
    packed = saved.data
    if packed is None:
        return
    unpack = saved.unpack_hook
    if unpack is None:
        if not _is_number(packed):
            yield packed
        return
    yield from _tensors_in(packed)
    for cell in getattr(unpack, "__closure__", None) or ():
        frame = cell.cell_contents
        if type(frame).__name__ == "_CheckpointFrame" and type(frame).__module__ == "torch.utils.checkpoint":
            # A checkpoint saved its inputs and nothing else. Each of its nodes leads here; a storage counts once.
            for argument in frame.saved_args:
                if isinstance(argument, _C._autograd.SavedTensor):
                    yield from _tensors_of(argument)


def _tensors_in(packed: object) -> Iterator[Any]:
    """The tensors in what a hook packed or a function keeps: itself, in containers, in attributes."""
    pending: list[object] = [packed]
    met: dict[int, object] = {}
    while pending and len(met) < _SEARCH_LIMIT:
        node = pending.pop()
        cls = type(node)
        if id(node) in met or issubclass(cls, _NO_CONTAINER):
            continue
        met[id(node)] = node
        if issubclass(cls, torch.Tensor):
            yield node
        elif issubclass(cls, torch.nn.Module):
            # Its parameters are the model's, not the graph's.
            continue
        else:
            pending.extend(gc.get_referents(node))


def _is_number(tensor: Any) -> bool:
    """Whether a saved tensor is a Python number in disguise (``x * 2.0``), which PyTorch gives to no hook."""
    if tensor.dim() or tensor.dtype not in _SMALLER or tensor.device.type != "cpu":
        return False
    # A number gives way to the type of any tensor of its sort; a tensor does not.
    other = _SMALLER[tensor.dtype]
    return torch.result_type(tensor, other) is other.dtype
