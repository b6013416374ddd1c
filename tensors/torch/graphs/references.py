"""For the search of holders: what tensors and graphs refer to, and how many steps graphs span."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, cast, final
from weakref import ref

import torch
from torch import Tensor

from ....scopes.compiled import tracked_objects
from ....scopes.context import HOOKS
from ....scopes.framework import FRAMEWORKS, Belonging, Framework, HeldMemory, LibraryCache, Part
from ..disposal import RECORDER, DisposedTorchTensor
from ..storages import storage_of, storages_behind
from .walk import (
    ACCUMULATE,
    NODE_NBYTES,
    SHOWS_SAVED,
    beside_no_backward,
    guard_release,
    is_leaf,
    is_spent,
    leaves_behind,
    node_of,
    nodes_added,
    read_of_graph,
    saved_under,
    walk_graph,
)

__all__ = [
    "MODULE",
    "OWNERS",
    "STEPS",
    "TorchReferences",
    "described",
    "identity_of",
    "members_of",
]


# The steps of optimizers, and the graphs whose nodes were made over several steps.
#
# PyTorch numbers the nodes of graphs in the order in which they are made. The number that is next
# at each step of an optimizer is remembered. It shows between which steps a node was made. Each
# thread has numbers of its own, so nothing is known where optimizers step on several threads.


_C: Final[Any] = torch._C
_NODE: Final[Any] = _C._FunctionBase
_number_now: Final[Any] = getattr(_C._autograd, "_get_sequence_nr", None)
_STEPS_AT_MOST: Final = 4096
"""How many steps are remembered; with more, every second one is dropped."""
_NODES_AT_MOST: Final = 50_000
"""How many nodes of one graph `Steps.reached` looks at."""
_WAITING_STEPS: Final = 32
"""A graph that a ``backward()`` can go through is not reported before this many steps.

A loss over several tasks waits for its ``backward()`` while a part of the model is trained for
each.
"""
_NO_NUMBER: Final = 2**63
"""Numbers from here on are no order: the nodes of leaves have the greatest number there is."""


@final
class _StepsOfOptimizer:
    """The steps of an optimizer, which may have been freed since."""

    __slots__ = ("numbers", "optimizer", "parameters")

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = ref(optimizer)
        self.numbers: list[int] = []
        self.parameters = {id(parameter): ref(parameter) for parameter in _parameters_of(optimizer)}

    def has_any_of(self, leaves: set[int]) -> bool:
        """Return whether one of its parameters is in `leaves`, a set of ids of live tensors.

        The parameters that it had when it was made, where it has been freed.
        """
        optimizer = self.optimizer()
        if optimizer is not None:
            return any(id(parameter) in leaves for parameter in _parameters_of(optimizer))
        return any(key in leaves and parameter() is not None for key, parameter in self.parameters.items())


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@final
class Steps:
    """The steps of all optimizers while a detector is open. The only instance is `STEPS`."""

    __slots__ = ("_by_optimizer", "_numbers", "_stride", "_taken", "_thread")

    def __init__(self) -> None:
        self.begin()

    def reached(self, tensor: Any) -> int:
        """Return in how many steps the nodes of a tensor's graph were made.

        What was made behind the last step is of that step. 0 for a tensor without a graph, before
        the second step, and where optimizers step on several threads.

        Only the steps of optimizers that have parameters of the graph count: a critic may step
        while the graph of a policy waits for the end of an episode. Where no optimizer has one (it
        may step on copies), all steps count, if no ``backward()`` can go through the graph.

        The result may be too small: not all of very many steps are remembered, and not all nodes of
        a very large graph are looked at.
        """
        node = node_of(tensor)
        if self._thread == 0 or len(self._numbers) < 2 or node is None:
            return 0
        nodes: dict[int, Any] = {}
        edges: dict[int, list[int]] = {}
        made: list[int] = []
        leaves: set[int] = set()
        pending = [node]
        while pending and len(nodes) < _NODES_AT_MOST:
            node = pending.pop()
            key = id(node)
            if key in nodes:
                continue
            nodes[key] = node
            number = node._sequence_nr()
            if number < _NO_NUMBER:
                made.append(number)
            else:
                leaves.add(id(getattr(node, "variable", None)))
            below = [child for child, _ in node.next_functions if child is not None]
            edges[key] = [id(child) for child in below]
            pending += below
        if pending:
            edges = {key: [child for child in below if child in nodes] for key, below in edges.items()}
        guard_release(nodes, edges)
        steps = self._steps_of(leaves)
        if not steps and is_spent(node):
            steps = self._numbers
        return min(len({bisect_right(steps, number) for number in made}), len(steps))

    def _steps_of(self, leaves: set[int]) -> list[int]:
        """Return the numbers at the steps of the optimizers that have one of the leaves.

        The leaves are given by ``id``; they are alive.
        """
        return sorted(
            number for steps in [*self._by_optimizer.values()] if steps.has_any_of(leaves) for number in steps.numbers
        )

    def before(self, tensor: Any) -> float | None:
        """Return the share of all steps, from 0 to 1, that came before the last node of a tensor.

        None where that is unknown.
        """
        node = node_of(tensor)
        if self._thread == 0 or not self._numbers or node is None:
            return None
        return bisect_right(self._numbers, node._sequence_nr()) / len(self._numbers)

    def begin(self) -> None:
        """Forget all steps: a detector is opened."""
        # The next node's number at the steps of all optimizers, at every `_stride`-th one.
        self._numbers: list[int] = []
        self._stride = 1
        self._taken = 0
        # The thread on which optimizers step: None before the first step, 0 for several threads.
        self._thread: int | None = None
        # By ``id``: an optimizer whose class defines an equality may have no hash.
        self._by_optimizer: dict[int, _StepsOfOptimizer] = {}

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step."""
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if self._thread != thread:
            self._thread = 0
        if _number_now is not None:
            number = _number_now()
            known = self._by_optimizer.get(id(optimizer))
            if known is None or known.optimizer() is not optimizer:
                known = self._by_optimizer[id(optimizer)] = _StepsOfOptimizer(optimizer)
            known.numbers.append(number)
            if len(known.numbers) > _STEPS_AT_MOST:
                del known.numbers[::2]
            self._taken += 1
            if self._taken % self._stride == 0:
                self._numbers.append(number)
                if len(self._numbers) > _STEPS_AT_MOST:
                    del self._numbers[::2]
                    self._stride *= 2
        for listener in HOOKS.listeners:
            listener.stepped()


STEPS: Final = Steps()

# What tensors, modules and the nodes of graphs refer to, for the search of holders.


# Getters of the base class: a subclass may define attributes of these names.
_Base: Final[Any] = _C.TensorBase
_grad: Final[Any] = _Base._grad.__get__
_base: Final[Any] = _Base._base.__get__
_retains_grad: Final[Any] = _Base.retains_grad.__get__
_hooks: Final[Any] = _Base._backward_hooks.__get__
_layout: Final[Any] = _Base.layout.__get__
_no_dispatch: Final[Any] = cast("Any", Tensor).__torch_dispatch__
_RAW: Final = "_raw_saved_"


def _training_by_parameter(modules: Iterable[Any]) -> dict[int, bool]:
    """Return, by ``id`` of each parameter, whether a module that has it is in training mode."""
    found: dict[int, bool] = {}
    for module in modules:
        # A module of torch.jit has no `training` in its ``__dict__``.
        is_training = bool(_names_of(module).get("training", True))
        for _, parameter in members_of(module, "_parameters"):
            found[id(parameter)] = found.get(id(parameter), False) or is_training
    return found


# The parts of a module, read without running a property or ``__getattr__`` of its class.


_PARTS: Final = ("_modules", "_parameters", "_buffers")
_HOOKS: Final = re.compile(r"_(\w+)_hooks$")
_DETAILS_AT_MOST: Final = 80
"""How many characters the description of a module has at most; only the class name otherwise."""
_ARGUMENTS: Final = frozenset({"bias", "device", "dtype", "inplace", "self"})
"""Arguments that the description leaves out, except ``bias=False``."""


def _names_of(module: Any) -> dict[str, Any]:
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return names


def members_of(module: Any, group: str) -> list[tuple[str, Any]]:
    """Return the parts of a module in one of its tables, by name.

    The tables are ``"_modules"``, ``"_parameters"`` and ``"_buffers"``.
    """
    parts: Any = _names_of(module).get(group)
    if parts is None:
        return []
    # The tables of a torch.jit module are no dicts: they read from C++ each time.
    items: Iterable[tuple[str, Any]] = (cast("Any", parts).copy() if isinstance(parts, dict) else parts).items()
    return [(name, part) for name, part in items if part is not None]


def _step_to(name: object) -> str:
    """Return the expression that follows a module in code to get a part of that name."""
    text = str(name)
    return f"[{text}]" if text.isdigit() else f".{text}" if text.isidentifier() else f"[{text!r}]"


def _parts_of(module: Any) -> list[tuple[str, object]]:
    return [(_step_to(name), part) for group in _PARTS for name, part in members_of(module, group)]


def _hooks_of(module: Any) -> list[tuple[str, object]]:
    """Return the hooks of a module, without the hooks of its tensors."""
    found: list[tuple[str, object]] = []
    for name, hooks in _names_of(module).copy().items():
        kind = _HOOKS.match(name)
        if kind is not None and isinstance(hooks, dict):
            label = f", {kind[1].replace('_', ' ')} hook"
            found += [(label, hook) for hook in cast("dict[object, object]", hooks).copy().values()]
    return found


MODULE: Final = "torch.nn.Module"
"""The name of the kind that models are recorded as."""

OWNERS: Final = (torch.nn.Module, torch.optim.Optimizer)
"""The types of objects that have the parameters of a model."""


def identity_of(module: object) -> Hashable:
    """Return the identity under which the memory of a module counts, as long as it lives."""
    return MODULE, id(module)


def described(module: Any) -> str:
    """Return the name of a module's class, with its arguments for a class of PyTorch.

    Only the name for a module that contains modules, and where the arguments are long or take
    several lines.
    """
    cls = type(cast("object", module))
    name = cls.__name__
    if not cls.__module__.startswith("torch.nn."):
        # `extra_repr` of a class of the program would run its code.
        return name
    if _names_of(module).get("_modules"):
        return name
    try:
        details = str(module.extra_repr())
    except Exception:
        return name
    given = [word.rpartition("_features=")[2] for word in details.split(", ")]
    kept = [word for word in given if word.partition("=")[0] not in _ARGUMENTS or word == "bias=False"]
    text = f"{name}({', '.join(kept)})"
    return name if len(text) > _DETAILS_AT_MOST or "\n" in text else text


class TorchReferences(Framework):
    """The methods of `TorchFramework` that the search for holders calls."""

    caches = (
        LibraryCache(
            r"module torch\.(?:_dynamo|_inductor|_functorch)\b|module [\w.]+\.__compiled_fn_",
            "a cache of torch.compile",
            "torch._dynamo.reset()",
        ),
        LibraryCache(
            r"module torch\.(?:jit|_jit_internal)\b",
            "a cache of torch.jit",
            "torch.jit._state._clear_class_state()",
        ),
    )
    _names: dict[type, list[str]]
    _asked: dict[type, bool]
    # The result of `_training_by_parameter` in this search; None before it is needed.
    _training: dict[int, bool] | None

    def __init__(self) -> None:
        super().__init__()
        self._names = {}
        self._asked = {}
        self._training = None

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context in which graphs and tensors can be read.

        In it there are no function modes, no graphs are recorded, and `torch.jit.trace` records
        nothing. Where reading needs that, other threads run no backward passes.
        """
        self._training = None
        stack = ExitStack()
        stack.enter_context(beside_no_backward())
        stack.enter_context(_C.DisableTorchFunction())
        stack.enter_context(torch.no_grad())
        # The size of a tensor would become a part of the traced program.
        tracing = _C._get_tracing_state()
        if tracing is not None:
            stack.callback(_C._set_tracing_state, tracing)
            _C._set_tracing_state(None)
        return stack

    def modules(self) -> Iterable[Any]:
        """Return the modules of the program."""
        return tracked_objects(torch.nn.Module)

    def is_of_evaluation(self, holders: Sequence[object], part: Any, /) -> bool:
        """Return whether a graph is of a model in eval mode.

        Then the module that keeps the graph is in eval mode; or, where no module keeps it, all
        modules whose parameters it uses are.
        """
        modules: list[Any] = [holder for holder in holders if issubclass(type(holder), torch.nn.Module)]
        if modules:
            return not any(module.training for module in modules[0].modules())
        node = node_of(part) if _is_tensor(type(part)) else part
        if node is None:
            return False
        # Another thread may reset the attribute by a search of its own.
        training = self._training
        if training is None:
            training = self._training = _training_by_parameter(self.modules())
        modes = [training[id(leaf)] for leaf in leaves_behind(node, 0) if id(leaf) in training]
        return bool(modes) and not any(modes)

    def part_of(self, cls: type, /) -> Part | None:
        """Return whether a class is one of tensors, of modules or of nodes of graphs.

        Optimizers count as modules: they have tensors too.
        """
        if _is_tensor(cls):
            return None if cls is DisposedTorchTensor else "tensor"
        if issubclass(cls, _NODE):
            return "node"
        if issubclass(cls, OWNERS):
            return "module"
        names: Any = cast("Any", cls).__dict__
        # The types of nodes written in C++ have no common base class.
        return "node" if "next_functions" in names and "_input_metadata" in names else None

    def references(self, thing: Any, /) -> list[tuple[str, object]]:
        """Return the objects that a tensor or node has in C++, or a module's parts and hooks."""
        if _is_tensor(type(thing)):
            found: list[tuple[str, object]] = [
                (".grad_fn", node_of(thing)),
                ("._base", _base(thing)),
                ("._backward_hooks", _hooks(thing)),
            ]
            if is_leaf(thing) or _retains_grad(thing):
                # PyTorch warns where `.grad` of another tensor is read.
                found.append((".grad", read_of_graph(_grad, thing, thing, node_of(thing))))
            return [edge for edge in found if edge[1] is not None]
        if issubclass(type(thing), torch.nn.Module):
            return [*_parts_of(thing), *_hooks_of(thing)]
        if issubclass(type(thing), torch.optim.Optimizer):
            return []
        following: Any = thing.next_functions or ()
        edges: list[tuple[str, object]] = [
            (f".next_functions[{index}][0]", node) for index, (node, _) in enumerate(following) if node is not None
        ]
        if not following and thing.name() == ACCUMULATE:
            edges.append((".variable", thing.variable))
        return edges

    def memory_of(self, thing: Any, /) -> list[HeldMemory]:
        """Return the storages of a tensor, and those that a node has saved."""
        cls: Any = type(thing)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if _is_tensor(cls):
            return self._of_tensor(thing, cls)
        if issubclass(cls, OWNERS):
            # All memory that belongs to a model has one identity: see `models`.
            return [HeldMemory("", identity_of(thing), 0)]
        names = self._names.get(cls)
        if names is None:
            names = self._names[cls] = [name for name in dir(cls) if name.startswith(_RAW)]
        return [
            HeldMemory(f"._saved_{name.removeprefix(_RAW)}", identity, nbytes)
            for name in names
            for tensor in saved_under(thing, name)
            for identity, nbytes in storages_behind(tensor)
        ]

    def belongings(self, thing: Any, /) -> list[Belonging]:
        """Return the modules in a module and the storages of its tensors, or those of a tensor."""
        found: list[Belonging] = []
        met: set[int] = set()
        pending: list[tuple[str, Any]] = [("", thing)]
        for name, part in pending:
            if id(part) in met:
                continue
            met.add(id(part))
            cls = type(cast("object", part))
            if issubclass(cls, torch.nn.Module):
                if part is not thing:
                    found.append(Belonging(name, part, None))
                pending += [(name + step, child) for step, child in _parts_of(part)]
            elif _is_tensor(cls) and cls is not DisposedTorchTensor:
                storage = storage_of(part)
                if storage is not None and storage.nbytes():
                    memory = ("torch", storage._cdata), storage.nbytes()
                    found.append(Belonging(name, storage, memory))
        return found

    def description_of(self, thing: Any, /) -> str | None:
        """Return the class of a module, with its arguments for a class of PyTorch."""
        return described(thing) if issubclass(type(thing), torch.nn.Module) else None

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the identity of the storage of a plain tensor, in a fast way.

        Where a program has a million tensors, most of them are plain.
        """
        return RECORDER.lone_storage(tensor)

    def steps_behind(self, tensor: Any, /) -> int:
        """Return over how many steps of optimizers its graph was made.

        0 for a graph of a single step, and for one of fewer than `_WAITING_STEPS` steps that a
        ``backward()`` can go through: the program may still call it.
        """
        steps = STEPS.reached(tensor)
        # With releases before 2.10 it is unknown whether one can.
        return steps if steps >= _WAITING_STEPS or (steps > 1 and (not SHOWS_SAVED or is_spent(node_of(tensor)))) else 0

    def step_of_graph(self, tensor: Any, /) -> tuple[float, bool] | None:
        """Return the share of steps before its graph was made, and whether the graph is spent.

        No ``backward()`` can go through a spent graph.
        """
        share = STEPS.before(tensor)
        return None if share is None else (share, is_spent(node_of(tensor)))

    def evaluations_behind(self, tensor: Any, /) -> int:
        """Return how many times a graph uses the same leaf, such as a weight once in each turn."""
        graph = walk_graph([tensor])
        uses = Counter(child for below in graph.edges.values() for child in below)
        return max((uses[key] for key, node in graph.nodes.items() if node.name() == ACCUMULATE), default=0)

    def graph_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return the bytes that the graphs of the tensors saved, without the memory of leaves."""
        return walk_graph([*tensors], without_leaves=True).nbytes

    def node_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return about how many bytes the nodes take that only the last tensor has near it."""
        return NODE_NBYTES * nodes_added(tensors)

    def graph_walked(self, nodes: dict[int, Any], edges: dict[int, list[int]], /) -> None:
        """Make sure that the graph can be released, however deep it is."""
        guard_release(nodes, edges)

    def _of_tensor(self, tensor: Any, cls: Any) -> list[HeldMemory]:
        if cls is not Tensor:
            # Reading sizes would call the code of a subclass that handles operators itself. The
            # tensors that it holds are attributes, and are found there.
            asked = self._asked.get(cls)
            if asked is None:
                asked = self._asked[cls] = cls.__torch_dispatch__ is not _no_dispatch
            if asked:
                return []
        if _layout(tensor) is not torch.strided:
            return [HeldMemory("", identity, nbytes) for identity, nbytes in storages_behind(tensor)]
        storage = storage_of(tensor)
        if storage is None:
            return []
        nbytes = _Base.numel(tensor) * _Base.element_size(tensor)
        found = [HeldMemory("", ("torch", storage._cdata), nbytes)]
        if not storage.resizable() and storage.device.type == "cpu":
            # PyTorch has not allocated this memory: it may be that of an array, or a part of it.
            address: int = storage.data_ptr()
            identity = FRAMEWORKS.identity_at(address, self)
            found.append(HeldMemory("", address if identity is None else identity, nbytes))
        return found


def _is_tensor(cls: Any) -> bool:
    # A function, so that type checkers do not consider the code after it unreachable.
    return issubclass(cls, Tensor)
