"""The passes of a training loop, and what tensors and graphs hold, for the search of holders."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
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


# The passes of a training loop, seen by the steps of optimizers, and the graphs that reach over
# several of them.
#
# Each operation of PyTorch that makes a node of a graph has a number, higher than the one before:
# what the numbers were at the steps shows between which of them a node was made. Operations of
# different threads are numbered apart, so where optimizers step on several threads nothing is said
# of graphs.


_C: Final[Any] = torch._C
_NODE: Final[Any] = _C._FunctionBase
_number_now: Final[Any] = getattr(_C._autograd, "_get_sequence_nr", None)
_KEPT: Final = 4096
_NODES: Final = 50_000
# A loss over several tasks waits for its backward() while a part of the model is trained for each.
_WAITS: Final = 32
_NO_NUMBER: Final = 2**63


@final
class _StepsOfOne:
    """The steps of an optimizer, which may be gone meanwhile."""

    __slots__ = ("numbers", "optimizer", "parameters")

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = ref(optimizer)
        self.numbers: list[int] = []
        self.parameters = {id(parameter): ref(parameter) for parameter in _parameters_of(optimizer)}

    def has_one_of(self, leaves: set[int]) -> bool:
        """Return whether it has, or had in the beginning, one of some parameters that are alive."""
        optimizer = self.optimizer()
        if optimizer is not None:
            return any(id(parameter) in leaves for parameter in _parameters_of(optimizer))
        return any(key in leaves and parameter() is not None for key, parameter in self.parameters.items())


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@final
class Steps:
    """The steps of all optimizers while a detector is open. The one instance is `STEPS`."""

    __slots__ = ("_met", "_numbers", "_of", "_stride", "_thread")

    def __init__(self) -> None:
        self.begin()

    def reached(self, tensor: Any) -> int:
        """Return between how many different steps the nodes of a tensor's graph were made.

        0 for a tensor without a graph, before the second step, and where optimizers step on several
        threads.

        The steps are those of the optimizers that have parameters of the graph: while those of a
        policy wait for the end of an episode, a critic may step. Where none has one (an optimizer
        may step on copies), they are the steps of all, if no ``backward()`` can go through it.

        Of very many steps some are remembered only, and of a very large graph a part is looked at:
        it is at least as many then.
        """
        node = node_of(tensor)
        if self._thread == 0 or len(self._numbers) < 2 or node is None:
            return 0
        nodes: dict[int, Any] = {}
        edges: dict[int, list[int]] = {}
        made: list[int] = []
        leaves: set[int] = set()
        pending = [node]
        while pending and len(nodes) < _NODES:
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
        return len({bisect_right(steps, number) for number in made}) if steps else 0

    def _steps_of(self, leaves: set[int]) -> list[int]:
        """Return the numbers at the steps of optimizers that have, or had, one of some parameters.

        The parameters are given by ``id``; they are alive.
        """
        return sorted(number for one in [*self._of.values()] if one.has_one_of(leaves) for number in one.numbers)

    def before(self, tensor: Any) -> float | None:
        """Return which share of the steps until now came before the graph of a tensor.

        None where that is unknown.
        """
        node = node_of(tensor)
        if self._thread == 0 or not self._numbers or node is None:
            return None
        return bisect_right(self._numbers, node._sequence_nr()) / len(self._numbers)

    def begin(self) -> None:
        """Forget what was counted: a detector is opened."""
        self._numbers: list[int] = []
        self._stride = 1
        self._met = 0
        self._thread: int | None = None
        # Of each optimizer, by ``id``: one that compares with others may have no hash.
        self._of: dict[int, _StepsOfOne] = {}

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step."""
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if self._thread != thread:
            self._thread = 0
        if _number_now is not None:
            number = _number_now()
            known = self._of.get(id(optimizer))
            if known is None or known.optimizer() is not optimizer:
                known = self._of[id(optimizer)] = _StepsOfOne(optimizer)
            known.numbers.append(number)
            if len(known.numbers) > _KEPT:
                del known.numbers[::2]
            self._met += 1
            if self._met % self._stride == 0:
                self._numbers.append(number)
                if len(self._numbers) > _KEPT:
                    del self._numbers[::2]
                    self._stride *= 2
        for listener in HOOKS.listeners:
            listener.stepped()


STEPS: Final = Steps()

# What PyTorch's tensors and the nodes of its graphs hold, for the search of who holds what.


# Past the attributes of subclasses.
_Base: Final[Any] = _C.TensorBase
_grad: Final[Any] = _Base._grad.__get__
_base: Final[Any] = _Base._base.__get__
_retains_grad: Final[Any] = _Base.retains_grad.__get__
_hooks: Final[Any] = _Base._backward_hooks.__get__
_layout: Final[Any] = _Base.layout.__get__
_no_dispatch: Final[Any] = cast("Any", Tensor).__torch_dispatch__
_RAW: Final = "_raw_saved_"


def _training_by_parameter() -> dict[int, bool]:
    """For each parameter of a module, by ``id``, whether one that has it is in training mode."""
    found: dict[int, bool] = {}
    for module in tracked_objects(torch.nn.Module):
        # A module of torch.jit has none.
        is_training = bool(_names_of(module).get("training", True))
        for _, parameter in members_of(module, "_parameters"):
            found[id(parameter)] = found.get(id(parameter), False) or is_training
    return found


# What a module has, without running a property or ``__getattr__`` of its class.


_PARTS: Final = ("_modules", "_parameters", "_buffers")
_HOOKS: Final = re.compile(r"_(\w+)_hooks$")
_DETAILS_AT_MOST: Final = 80
_ARGUMENTS: Final = frozenset({"bias", "device", "dtype", "inplace", "self"})


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
    # Those of torch.jit are no dicts: they read what C++ has, anew each time.
    items: Iterable[tuple[str, Any]] = (cast("Any", parts).copy() if isinstance(parts, dict) else parts).items()
    return [(name, part) for name, part in items if part is not None]


def _step_to(name: object) -> str:
    """Return how code reaches a part of a module by its name."""
    text = str(name)
    return f"[{text}]" if text.isdigit() else f".{text}" if text.isidentifier() else f"[{text!r}]"


def _parts_of(module: Any) -> list[tuple[str, object]]:
    return [(_step_to(name), part) for group in _PARTS for name, part in members_of(module, group)]


def _hooks_of(module: Any) -> list[tuple[str, object]]:
    """Return the functions that are hooks of a module; those of tensors in it are the tensors'."""
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
"""The types of what has the parameters of a model."""


def identity_of(module: object) -> Hashable:
    """Return the identity of what belongs to a module, for as long as it lives."""
    return MODULE, id(module)


def described(module: Any) -> str:
    """Return the name of a module's class, with what a class of PyTorch's says of an instance.

    The name alone for a module of modules, and where the rest is long or of several lines.
    """
    cls = type(cast("object", module))
    name = cls.__name__
    if not cls.__module__.startswith("torch.nn."):
        # What a class of the program's says would run its code.
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
    """What the search for holders asks of PyTorch: the lower half of `TorchFramework`."""

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
    # By ``id``, whether the module of a parameter is in training mode; None where it is not known
    # yet in this search.
    _training: dict[int, bool] | None

    def __init__(self) -> None:
        super().__init__()
        self._names = {}
        self._asked = {}
        self._training = None

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context without function modes and gradients, which `torch.jit.trace` ignores.

        Where needed, there are no backward passes of other threads in it either.
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

    def is_of_evaluation(self, holders: Sequence[object], part: Any, /) -> bool:
        """Return whether a graph is of a model in eval mode.

        It is where the module that keeps it is in eval mode; where no module keeps it, all modules
        whose parameters it takes must be.
        """
        modules: list[Any] = [holder for holder in holders if issubclass(type(holder), torch.nn.Module)]
        if modules:
            return not any(module.training for module in modules[0].modules())
        node = node_of(part) if _is_tensor(type(part)) else part
        if node is None:
            return False
        # Another thread may begin a search meanwhile.
        training = self._training
        if training is None:
            training = self._training = _training_by_parameter()
        modes = [training[id(leaf)] for leaf in leaves_behind(node, 0) if id(leaf) in training]
        return bool(modes) and not any(modes)

    def part_of(self, cls: type, /) -> Part | None:
        """Return what tensors, modules and the nodes of graphs are.

        Optimizers are modules here: they have tensors as modules do.
        """
        if _is_tensor(cls):
            return None if cls is DisposedTorchTensor else "tensor"
        if issubclass(cls, _NODE):
            return "node"
        if issubclass(cls, OWNERS):
            return "module"
        names: Any = cast("Any", cls).__dict__
        # The types of nodes written in C++ have no base of their own.
        return "node" if "next_functions" in names and "_input_metadata" in names else None

    def references(self, thing: Any, /) -> list[tuple[str, object]]:
        """Return what a tensor or a node holds in C++, and what a module has by names and hooks."""
        if _is_tensor(type(thing)):
            found: list[tuple[str, object]] = [
                (".grad_fn", node_of(thing)),
                ("._base", _base(thing)),
                ("._backward_hooks", _hooks(thing)),
            ]
            if is_leaf(thing) or _retains_grad(thing):
                # That of others is asked for with a warning.
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
            # All that belongs to it counts as one: see `models`.
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
        """Return the class of a module, and for PyTorch's own what it is made with."""
        return described(thing) if issubclass(type(thing), torch.nn.Module) else None

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the storage of a plain tensor.

        Where a program has a million tensors, most are such.
        """
        return RECORDER.lone_storage(tensor)

    def steps_behind(self, tensor: Any, /) -> int:
        """Return between how many steps of optimizers its graph was made.

        0 for a graph of a single step, and for one of fewer than `_WAITS` steps that a
        ``backward()`` can go through: it waits for that.
        """
        steps = STEPS.reached(tensor)
        # Before 2.10 PyTorch does not show whether one can.
        return steps if steps >= _WAITS or (steps > 1 and (not SHOWS_SAVED or is_spent(node_of(tensor)))) else 0

    def step_of_graph(self, tensor: Any, /) -> tuple[float, bool] | None:
        """Return after which share of the steps its graph was made, and whether it is spent.

        A spent graph is one that no ``backward()`` can go through.
        """
        share = STEPS.before(tensor)
        return None if share is None else (share, is_spent(node_of(tensor)))

    def graph_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return the bytes that their graphs saved of other tensors than leaves."""
        return walk_graph([*tensors], without_leaves=True).nbytes

    def node_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return about how many bytes the nodes take that are near the last of some tensors.

        Nodes that are near another one of them do not count.
        """
        return NODE_NBYTES * nodes_added(tensors)

    def graph_walked(self, nodes: dict[int, Any], edges: dict[int, list[int]], /) -> None:
        """See to it that the graph can be released, however deep it is."""
        guard_release(nodes, edges)

    def _of_tensor(self, tensor: Any, cls: Any) -> list[HeldMemory]:
        if cls is not Tensor:
            # A subclass that handles operators itself would be asked for sizes: what it holds are
            # attributes.
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
            # PyTorch has not allocated it: it may be an array's, or a part of one.
            address: int = storage.data_ptr()
            identity = FRAMEWORKS.identity_at(address, self)
            found.append(HeldMemory("", address if identity is None else identity, nbytes))
        return found


def _is_tensor(cls: Any) -> bool:
    # A function, so that type checkers do not take what follows for unreachable.
    return issubclass(cls, Tensor)
