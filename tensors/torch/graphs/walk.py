"""The walk through an autograd graph: its nodes, the memory that they saved, and their modules."""

from __future__ import annotations

import gc
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, wraps
from operator import attrgetter
from typing import Any, Final, cast, final

import torch

from ....scopes.base.errors import DisposedError
from ....scopes.base.process import PATCHES
from ....scopes.compiled import tracked_objects
from ...patches import TORCH_GRAPHS
from ..compiled import backward_elsewhere, begin_look, read_between
from ..storages import storage_of, storages_behind

__all__ = [
    "ACCUMULATE",
    "NODE_NBYTES",
    "SHOWS_SAVED",
    "Graph",
    "beside_no_backward",
    "check_graphs",
    "guard_release",
    "is_leaf",
    "is_spent",
    "leaves_behind",
    "modules_of",
    "node_of",
    "nodes_added",
    "read_of_graph",
    "saved_under",
    "showing_what_was_packed",
    "walk_graph",
]

# Guards keep the release of a deep autograd graph from overflowing the stack.
#
# PyTorch releases a graph in a loop, however deep it is. But a node that Python has read keeps its
# Python object until it is freed, and the release of a chain of such nodes nests: with PyTorch 2.13
# and a stack of 8 MiB about 50,000 nodes end in a segmentation fault. So code that walks a deep
# graph puts guards into it. A guard is in the metadata of a node and refers to nodes below it. When
# its node is freed, the guard releases the nodes below in a loop, so that the nesting does not grow
# further. It only refers to nodes that its own node refers to, so it keeps nothing alive for
# longer.


GUARDED_DEPTH: Final = 500
"""How many nodes may be released inside one another.

A graph of fewer than twice as many nodes gets no guards.
"""

_KEY: Final = "disposescope.release"
"""The key of a guard in a node's metadata."""


class _Queue(threading.local):
    # The nodes that the guard at work is to release; None where no guard is at work.
    pending: list[list[Any]] | None = None


_QUEUE: Final = _Queue()


@final
class _Guard:
    """Keeps Python objects of nodes until it is freed, and then drops them one after the other."""

    __slots__ = ("held",)

    held: list[Any]

    def __init__(self, held: list[Any]) -> None:
        self.held = held

    def __del__(self, queue: _Queue = _QUEUE) -> None:
        held, self.held = self.held, []
        if queue.pending is not None:
            # Another guard further out on this stack is at work: it drops them in its loop.
            queue.pending.append(held)
            return
        queue.pending = pending = [held]
        del held
        try:
            while pending:
                # Not bound to a name: these nodes must be freed before the next list is taken.
                pending.pop().clear()
        finally:
            queue.pending = None


def guard_release(nodes: dict[int, Any], edges: dict[int, list[int]]) -> None:
    """Make sure that the release of a graph nests no deeper than twice `GUARDED_DEPTH` nodes.

    Parameters
    ----------
    nodes : dict
        The nodes of the whole graph, by ``id``.
    edges : dict
        For each of them, the ``id`` of the nodes that it refers to.
    """
    if len(nodes) < 2 * GUARDED_DEPTH:
        return
    heights = _heights(nodes, edges)
    # A band is a range of `GUARDED_DEPTH` heights. Edges from one band into a lower one get guards.
    # Heights count from the leaves, so the bands stay the same when the graph grows.
    for key, below in edges.items():
        band = heights[key] // GUARDED_DEPTH
        crossed = [nodes[child] for child in below if heights[child] // GUARDED_DEPTH < band]
        if crossed:
            metadata = nodes[key].metadata
            if _KEY not in metadata:
                metadata[_KEY] = _Guard(crossed)


def _heights(nodes: dict[int, Any], edges: dict[int, list[int]]) -> dict[int, int]:
    """Return the length of the longest path from each node to a leaf."""
    above: dict[int, list[int]] = {key: [] for key in nodes}
    waiting: dict[int, int] = {}
    for key, below in edges.items():
        waiting[key] = len(below)
        for child in below:
            above[child].append(key)
    heights = dict.fromkeys(nodes, 0)
    ready = [key for key, count in waiting.items() if count == 0]
    while ready:
        key = ready.pop()
        for parent in above[key]:
            heights[parent] = max(heights[parent], heights[key] + 1)
            waiting[parent] -= 1
            if waiting[parent] == 0:
                ready.append(parent)
    return heights


# The walk through an autograd graph: its nodes, and the memory that they saved for ``backward()``.
#
# Saved tensors are read without unpacking them (``SavedTensor.data``). So no hook of the program
# runs, nothing is recomputed or fetched back from where it was offloaded to, and tensors that were
# changed in place since they were saved count too. Source:
# https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors
#
# Releases before 2.10 have no such attribute. There the public attributes (``_saved_result``) are
# read, which do unpack. The unpacking hooks that this library knows are made to return the packed
# object instead (see `showing_what_was_packed`). Tensors that were changed in place since then
# cannot be read.


ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
"""The name of the node at the end of every path, which adds up the gradient of a leaf."""

NODE_NBYTES: Final = 640
"""About how many bytes a node takes after its saved tensors were freed.

Measured on x86-64 with PyTorch 2.13, with graphs of 9 to 61 nodes: 646 to 1,083 bytes a node,
including the objects that it refers to.
"""

_C: Final[Any] = torch._C
_RAW: Final = "_raw_saved_"
# Types of nodes that have no attributes for their saved tensors: ops of C++ extensions, and writes
# into a view.
_OPAQUE: Final = frozenset({"CppFunction", "CopySlices"})
_NO_CONTAINER: Final = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
_SEARCH_LIMIT: Final = 1000
"""How many objects are searched for tensors in one packed object or ``ctx``."""
_NEAREST: Final = 1000
"""How many nodes of one graph `nodes_added` looks at."""

# For each dtype that a Python number gets, a tensor of a smaller dtype of the same kind.
_SMALLER: Final = {
    torch.float64: torch.tensor(0, dtype=torch.float16, device="cpu"),
    torch.int64: torch.tensor(0, dtype=torch.int8, device="cpu"),
    torch.complex128: torch.tensor(0, dtype=torch.complex64, device="cpu"),
}


@final
class Graph:
    """The nodes of the graph behind some tensors, and the bytes of the storages that each saved.

    To be kept only for a short time: it keeps the nodes alive, and so the tensors that they saved.

    Attributes
    ----------
    ends : list
        The nodes that made the tensors themselves.
    nodes : dict
        The nodes by ``id``, those nearest to the tensors first.
    edges : dict
        For each node, the ``id`` of the nodes to which it passes gradients.
    bytes_of : dict
        For each node that saved something, the bytes of the storages that no node before it saved.
    attribute_bytes : int
        The bytes of tensors that custom functions keep as attributes of their ``ctx`` and that no
        node saved. PyTorch does not know of them, and ``backward()`` does not free them.
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


def walk_graph(roots: list[Any], *, without_leaves: bool = False) -> Graph:
    """Return the graph behind some tensors, with the bytes that its nodes saved.

    Parameters
    ----------
    roots : list of torch.Tensor
        Live tensors.
    without_leaves : bool, default False
        Whether the memory of leaves, such as the parameters of a model, is left out: a graph saves
        it, but the model keeps it alive anyway.
    """
    with beside_no_backward(), _C.DisableTorchFunction(), torch.no_grad():
        graph = Graph([node for root in roots if (node := node_of(root)) is not None])
        _collect(graph)
        _measure(graph, without_leaves=without_leaves)
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
        # Kept until the end of the walk: the id of a freed object may be used again.
        nodes[key] = node
        below = [child for child, _ in node.next_functions if child is not None]
        edges[key] = [id(child) for child in below]
        pending.extend(child for child in reversed(below) if id(child) not in nodes)


def nodes_added(tensors: Sequence[Any]) -> int:
    """Return how many nodes are near the last of the tensors and near no other one of them.

    Leaves do not count. Only the `_NEAREST` nodes of each graph are looked at: where each step
    computes a state from the last one, the graph contains all earlier steps.
    """
    added: set[int] = set()
    known: dict[int, Any] = {}
    with beside_no_backward(), _C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors:
            near = _nearest(node_of(tensor))
            added = near.keys() - known.keys()
            # Kept until the end: the id of a freed object may be used again.
            known.update(near)
    return len(added)


def _nearest(end: Any) -> dict[int, Any]:
    """Return the nodes nearest to a node, by ``id``.

    Leaves are left out: they belong to the parameters of a model.
    """
    near: dict[int, Any] = {}
    pending = deque([] if end is None else [end])
    while pending and len(near) < _NEAREST:
        node = pending.popleft()
        if id(node) not in near and node.name() != ACCUMULATE:
            near[id(node)] = node
            pending.extend(below for below, _ in node.next_functions if below is not None)
    return near


def _measure(graph: Graph, *, without_leaves: bool) -> None:
    names: dict[type, list[str]] = {}
    found: dict[Hashable, int] = {}
    if without_leaves:
        for node in graph.nodes.values():
            if node.name() == ACCUMULATE:
                found.update(storages_behind(node.variable))
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
        for tensor in _saved_tensors_in(attributes):
            for identity, nbytes in storages_behind(tensor):
                if identity not in found:
                    found[identity] = nbytes
                    graph.attribute_bytes += nbytes


# Backward passes on other threads.
#
# A backward pass runs without the GIL, frees saved tensors and adds to gradients. Reading a
# gradient or a `SavedTensor` at that time can be a segmentation fault: PyTorch takes no lock for
# it. For the attributes of a node PyTorch takes the node's lock. The pass may have that lock while
# it waits for the GIL to free a tensor, so both threads would wait for ever. So nodes and leaves
# that a running pass can reach are not read. They count as freed.


class _InUse(threading.local):
    """The nodes and leaves that running backward passes can reach.

    Attributes
    ----------
    begun : int
        How many passes had begun when `nodes` was computed; it is valid until another one begins.
    nodes : frozenset of int
        The ids of the nodes and leaves. They live as long as the passes, and a node that Python has
        read keeps its id.
    """

    begun = -1
    nodes: frozenset[int] = frozenset()

    def has(self, begun: int, roots: list[Any], things: tuple[object, ...]) -> bool:
        """Return whether a running pass can reach one of the given nodes and leaves.

        Parameters
        ----------
        begun : int
            How many passes have begun.
        roots : list
            The roots of the running passes.
        things : tuple
            The nodes and leaves.
        """
        if begun != self.begun:
            graph = Graph([end for each in roots for root in each for end in _ends_of(root)])
            _collect(graph)
            leaves = {id(node.variable) for node in graph.nodes.values() if node.name() == ACCUMULATE}
            guard_release(graph.nodes, graph.edges)
            self.nodes, self.begun = frozenset((*graph.nodes, *leaves)), begun
        return any(id(thing) in self.nodes for thing in things)


_IN_USE: Final = _InUse()
_PATIENCE_S: Final = 10.0
"""For how many seconds `beside_no_backward` waits for a pass that does not end."""
_PAUSE_S: Final = 0.001
"""How many seconds it sleeps between two looks."""
_grad_fn: Final[Any] = _C.TensorBase.grad_fn.__get__
_is_leaf: Final[Any] = _C.TensorBase.is_leaf.__get__


def node_of(tensor: Any) -> Any:
    """Return the node that made a tensor; None where there is none, or PyTorch raises.

    PyTorch raises for a view whose base was changed in place with a graph, if the view was made
    under `torch.no_grad` or by a function that returns several views.
    """
    try:
        return _grad_fn(tensor)
    except RuntimeError:
        return None


def is_leaf(tensor: Any) -> bool:
    """Return whether a tensor is a leaf of graphs.

    False where PyTorch raises, as for `node_of`.
    """
    try:
        return bool(_is_leaf(tensor))
    except RuntimeError:
        return False


def _ends_of(root: Any) -> Iterator[Any]:
    """Yield the node where a backward pass begins.

    Its root is a tensor, or an edge: a tuple of a node and a number.
    """
    node = root[0] if isinstance(root, tuple) else node_of(root)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if node is not None:
        yield node


def _keeps_nodes() -> bool:
    with _C.DisableTorchFunction(), _C._DisableTorchDispatch(), torch.inference_mode(False), torch.enable_grad():
        # `neg` saves nothing: so no hook of the program on saved tensors is called.
        result = torch.ones(1, device="cpu", requires_grad=True).neg()
        node = node_of(result)
    before = sys.getrefcount(node)
    del result
    return sys.getrefcount(node) < before


with _C._DisableFuncTorch():  # a transform that runs during this import would wrap the tensor
    # True from PyTorch 2.13 on.
    KEEPS_NODES: Final = _keeps_nodes()
"""Whether C++ that refers to a node counts as one reference to its Python object."""


@contextmanager
def beside_no_backward() -> Generator[None]:
    """Keep backward passes of other threads from running in a block, with releases before 2.13.

    These free a node, and before 2.10 a tensor, while Python code is reading it. So the block waits
    until no pass is running, and new passes wait until the block is left. After `_PATIENCE_S` the
    block is entered although a pass still runs. Inside a pass of this thread nothing waits.
    """
    look = None
    try:
        if not KEEPS_NODES:
            until = time.monotonic() + _PATIENCE_S
            look = begin_look()
            while look is not None and backward_elsewhere()[1] and time.monotonic() < until:
                # Let passes begin during the sleep: the running pass may wait for another one.
                look = None
                time.sleep(_PAUSE_S)
                look = begin_look()
        yield
    finally:
        # Explicitly, because a traceback may keep this frame and its variables.
        look = None


def read_of_graph(function: Callable[[Any], Any], argument: object, *things: object) -> Any:
    """Read a part of a graph with a function written in C; None where a backward pass may use it.

    Only passes of other threads count.

    Parameters
    ----------
    function : callable
        The function. It must run no Python code before it has read.
    argument : object
        The argument of the function.
    *things : object
        The nodes and leaves to which the part belongs. Without any, any running pass may use it.
    """
    while True:
        begun, roots = backward_elsewhere()
        if roots and (not things or _IN_USE.has(begun, roots, things)):
            return None
        found = read_between(begun, function, argument)
        if found is not NotImplemented:
            return found


def saved_under(node: Any, name: str) -> Iterator[Any]:
    """Yield the tensors that a node saved under a raw name, such as ``"_raw_saved_self"``.

    There are none where a backward pass on another thread has the node in use.
    """
    if not _are_read_raw():
        yield from _unpacked_under(node, name)
        return
    try:
        saved: Any = read_of_graph(_attribute(name), node, node)
    except RuntimeError:
        # A backward() has freed it: these attributes raise for no other reason.
        return
    saved_tensors: list[Any] = list(saved) if isinstance(saved, tuple) else [saved]  # pyright: ignore[reportUnknownArgumentType] (from Any)
    for saved_tensor in saved_tensors:
        if saved_tensor is not None:
            yield from _tensors_of(saved_tensor, node)


_attribute: Final = cache(attrgetter)
_data_and_hook: Final = attrgetter("data", "unpack_hook")


def _tensors_of(saved: Any, *node: object) -> Iterator[Any]:
    """Yield the tensors behind a ``SavedTensor`` of a node.

    There are none where PyTorch returns no data (it was freed, or another object has it), and where
    a backward pass on another thread has it in use.
    """
    packed, unpack = read_of_graph(_data_and_hook, saved, *node) or (None, None)
    if packed is None:
        return
    if unpack is not None:
        yield from _behind_hook(packed, unpack)
        return
    # Another thread may dispose the tensor at any time.
    with suppress(DisposedError):
        if not _is_number(packed):
            yield packed


def _behind_hook(packed: object, unpack: object) -> Iterator[Any]:
    """Yield the tensors in what a hook packed, and the inputs that a checkpoint saved."""
    yield from _saved_tensors_in(packed)
    for cell in getattr(unpack, "__closure__", None) or ():
        frame = cell.cell_contents
        if type(frame).__name__ == "_CheckpointFrame" and type(frame).__module__ == "torch.utils.checkpoint":
            # A checkpoint saves only its inputs, in its frame. Each of its nodes leads to the same
            # frame; the caller counts a storage once.
            for argument in getattr(frame, "saved_args", ()):
                if SHOWS_SAVED and isinstance(argument, _C._autograd.SavedTensor):
                    yield from _tensors_of(argument)
            # Earlier releases save the inputs in a node.
            saver = getattr(frame, "input_saver", None)
            if isinstance(saver, torch.Tensor) and saver.grad_fn is not None:
                yield from saved_under(saver.grad_fn, f"{_RAW}tensors")


SHOWS_SAVED: Final = all(hasattr(_C._autograd.SavedTensor, name) for name in ("data", "unpack_hook"))
"""Whether this PyTorch lets Python read saved tensors without unpacking them."""


@cache
def _are_read_raw() -> bool:
    """Return whether saved tensors are read without unpacking them; tried with a small graph."""
    if not SHOWS_SAVED:
        # A release before 2.10. `_unpacked_under` warns where it cannot read something.
        return False
    missed = _missed_in_a_graph()
    if missed is not None:
        PATCHES.fail(TORCH_GRAPHS, missed)
    return missed is None


def check_graphs() -> None:
    """Note in the table of patches where saved tensors cannot be read without unpacking them."""
    if not _are_read_raw() and not SHOWS_SAVED:
        PATCHES.fail(TORCH_GRAPHS, "torch._C._autograd.SavedTensor has no data and unpack_hook")


def is_spent(end: Any) -> bool:
    """Return whether no ``backward()`` can go through a graph any more.

    Its saved tensors were freed by a ``backward()``, or changed in place since they were saved.
    Only `GUARDED_DEPTH` nodes of a large graph are looked at; it counts as spent where these have
    no saved tensors. False where this PyTorch cannot read saved tensors without unpacking them.
    """
    if not _are_read_raw():
        return False
    saves = False
    names: dict[type, list[str]] = {}
    # Fewer nodes than need a guard.
    nodes: dict[int, Any] = {}
    pending = [end]
    while pending and len(nodes) < GUARDED_DEPTH:
        node = pending.pop()
        if node is None or id(node) in nodes:
            continue
        nodes[id(node)] = node
        pending += [child for child, _ in node.next_functions]
        cls: Any = type(node)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls not in names:
            names[cls] = [name for name in dir(cls) if name.startswith(_RAW)]
        saves = saves or bool(names[cls])
        if any(_is_refused(node, name) for name in names[cls]):
            return True
    return bool(pending) and not saves


def _is_refused(node: Any, name: str) -> bool:
    """Return whether PyTorch raises where a saved tensor of a node is unpacked.

    False where a hook would have to be called for it.
    """
    try:
        saved: Any = read_of_graph(_attribute(name), node, node)
        saved_tensors: list[Any] = list(saved) if isinstance(saved, tuple) else [saved]  # pyright: ignore[reportUnknownArgumentType] (from Any)
        if all(isinstance(each, _C._autograd.SavedTensor) and each.unpack_hook is None for each in saved_tensors):
            read_of_graph(_attribute(_public_name(node, name)), node, node)
    except RuntimeError:
        return True
    return False


def _public_name(node: Any, name: str) -> str:
    """Return the name of the public attribute for a raw one.

    It is ``saved_tensors`` for custom functions, and such as ``_saved_self`` for other nodes.
    """
    is_custom = name == f"{_RAW}tensors" and hasattr(cast("object", type(node)), "saved_tensors")
    return "saved_tensors" if is_custom else f"_{name[5:]}"


@contextmanager
def _without_saved_tensor_hooks() -> Generator[None]:
    """Disable this thread's hooks on saved tensors in a block.

    The hooks of a checkpoint count saved tensors, so an additional one would confuse them.
    """
    autograd = _C._autograd
    taken: list[tuple[Any, Any]] = []
    try:
        while (top := autograd._top_saved_tensors_default_hooks(False)) is not None:
            taken.append(top)
            autograd._pop_saved_tensors_default_hooks()
        yield
    finally:
        for pack, unpack in reversed(taken):
            autograd._push_saved_tensors_default_hooks(pack, unpack)


def _missed_in_a_graph() -> str | None:
    """Return why the saved tensor of a small graph cannot be read; None where it can."""
    with _C.DisableTorchFunction(), _C._DisableTorchDispatch(), torch.inference_mode(False), torch.enable_grad():
        try:
            with _without_saved_tensor_hooks():
                result = torch.ones(2, device="cpu", requires_grad=True).exp()
            node: Any = result.grad_fn
            saved = node._raw_saved_result
            same = saved.unpack_hook is None and storage_of(saved.data)._cdata == storage_of(result)._cdata
        except (AttributeError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
    return None if same else "the graph of a probe does not show what it saved"


class _Reading(threading.local):
    """Whether this thread reads saved tensors by the public attributes: see `_unpacked_under`.

    Attributes
    ----------
    packed : list of tuple, optional
        The packed objects with which unpacking hooks were called, each with its hook. None while no
        node is read.
    """

    packed: list[tuple[object, object]] | None = None


_READING: Final = _Reading()
with _C._DisableFuncTorch():  # a transform that runs during this import would wrap the tensor
    # What an unpacking hook returns while a node is read, in place of the saved tensor.
    _STANDIN: Final = torch.empty(0, device="cpu")
_STANDIN_STORAGE: Final[int] = _STANDIN.untyped_storage()._cdata


def showing_what_was_packed(unpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an unpacking hook that calls another one, except while `_unpacked_under` reads.

    Then it notes the packed object instead.
    """

    @wraps(unpack)
    def unpacked(packed: Any) -> Any:
        if _READING.packed is None:
            return unpack(packed)
        _READING.packed.append((packed, unpack))
        return _STANDIN

    return unpacked


def _unpacked_under(node: Any, name: str) -> Iterator[Any]:
    """Yield the tensors that a node saved under a name, read by its public attribute."""
    public = _public_name(node, name)
    saved: Any = None
    packed: list[tuple[object, object]] = []
    _READING.packed = packed
    try:
        saved = read_of_graph(_attribute(public), node, node)
    except RuntimeError as error:
        # Freed by a backward(), or changed in place after it was saved.
        if "modified by an inplace operation" in str(error):
            PATCHES.note_unseen(TORCH_GRAPHS, "something that a graph saved was changed in place since")
    finally:
        _READING.packed = None
    for thing, unpack in packed:
        yield from _behind_hook(thing, unpack)
    tensors: list[Any] = list(saved) if isinstance(saved, tuple) else [saved]  # pyright: ignore[reportUnknownArgumentType] (from Any)
    for tensor in tensors:
        # Another thread may dispose the tensor at any time.
        with suppress(DisposedError):
            if tensor is not None and not _is_number(tensor) and not _is_standin(tensor):
                yield tensor


def _is_standin(tensor: Any) -> bool:
    """Return whether a tensor is what a hook returned in place of the saved tensor."""
    storage = storage_of(tensor)
    return storage is not None and storage._cdata == _STANDIN_STORAGE


def _saved_tensors_in(packed: object) -> Iterator[Any]:
    """Yield the tensors in an object that a hook packed or a function keeps.

    The object may be a tensor, or have tensors in containers and attributes.
    """
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
            # The parameters of a module belong to a model, not to the graph.
            continue
        else:
            pending.extend(gc.get_referents(node))


def _is_number(tensor: Any) -> bool:
    """Return whether a saved tensor stands for a Python number, as in ``x * 2.0``.

    PyTorch does not pass such a number to hooks.
    """
    if tensor.dim() or tensor.dtype not in _SMALLER or tensor.device.type != "cpu":
        return False
    # Computed with a tensor of a smaller dtype, a number takes that dtype and a tensor does not.
    other = _SMALLER[tensor.dtype]
    return torch.result_type(tensor, other) is other.dtype


# Which modules made the nodes of an autograd graph, found by the parameters that the nodes use.


def leaves_behind(end: Any, since: int) -> list[Any]:
    """Return the leaves that are inputs of the newest nodes of a graph.

    Where they have no leaf as an input, return the nearest leaves behind them.

    Parameters
    ----------
    end : torch.autograd.graph.Node
        The node that was recorded last.
    since : int
        The number of the first node that counts.
    """
    leaves: dict[int, Any] = {}
    met = {id(end): end}
    new, old = [end], list[Any]()
    while (new or (old and not leaves)) and len(met) < GUARDED_DEPTH:
        node = new.pop(0) if new else old.pop(0)
        for child, _ in node.next_functions:
            if child is None or id(child) in met:
                continue
            met[id(child)] = child
            if child.name() == ACCUMULATE:
                leaves[id(child.variable)] = child.variable
            else:
                (new if child._sequence_nr() >= since else old).append(child)
    return list(leaves.values())


def modules_of(graph: Graph) -> dict[int, str]:
    """For each node with a parameter as an input, return the name of the module that has it.

    A name starts with the class of the outermost module: ``"Sequential.0"``. Where a parameter
    belongs to no module that is alive, or more than one node (the transpose of a weight) stands
    between the two, the module is unknown.
    """
    taken: dict[int, list[int]] = {}
    for key, node in graph.nodes.items():
        if node.name() == ACCUMULATE:
            taken.setdefault(id(node.variable), []).append(key)
    if not taken:
        return {}
    owners = _owners(set(taken))
    named = {key: owners[parameter] for parameter, keys in taken.items() if parameter in owners for key in keys}
    # A weight is often taken through one node of its own: its transpose.
    through = {key: named[below[0]] for key, below in graph.edges.items() if len(below) == 1 and below[0] in named}
    found: dict[int, str] = {}
    for key, below in graph.edges.items():
        direct = [named[child] for child in below if child in named]
        if direct:
            found[key] = direct[0]
        else:
            indirect = [through[child] for child in below if child in through]
            if indirect:
                found[key] = indirect[0]
    return found


def _owners(parameters: set[int]) -> dict[int, str]:
    """For each of some parameters, by ``id``, the name of the module that has it."""
    modules: dict[int, Any] = {}
    children: set[int] = set()
    for module in tracked_objects(torch.nn.Module):
        modules[id(module)] = module
        children.update(id(child) for child in _registered(module, "_modules").values())
    roots = [module for key, module in modules.items() if key not in children] or list(modules.values())
    owners: dict[int, str] = {}
    met: set[int] = set()
    pending = [(root, type(root).__qualname__) for root in roots][::-1]
    while pending:
        module, name = pending.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        for parameter in _registered(module, "_parameters").values():
            if id(parameter) in parameters:
                owners.setdefault(id(parameter), name)
        children_named = _registered(module, "_modules").items()
        below = [(child, f"{name}.{key}") for key, child in children_named if child is not None]
        pending.extend(below[::-1])
    return owners


def _registered(module: Any, what: str) -> dict[str, Any]:
    """Return the dict of submodules or parameters of a module, without running its code.

    Empty where ``__init__`` of ``torch.nn.Module`` has not run.
    """
    state: Any = module.__dict__
    registered: dict[str, Any] | None = state.get(what)
    return registered or {}
