"""Models for a leak detector: where each was made, and which memory belongs to it.

A model is a module of any class that is in no other module. A ``ModuleList`` or ``ModuleDict`` that
is in no module is a list of models. A model is reported as one thing, with its parameters, buffers
and gradients and the state that optimizers keep for them. Its line is the one that called its
class, not a line in its own ``__init__``. An optimizer whose parameters are in no module any more
is reported as a model too.

PyTorch calls a hook at each registration of a parameter, buffer or submodule. The first
registration of a module happens while it is made (in its ``__init__``), copied or unpickled. A
module whose first known registration is at another time existed before the detector.

A model can also grow: by a layer, a parameter or a buffer under a new name with each step. Where
many were added after a module was made, they are reported each with its own line: a module like a
model, a tensor like any other tensor. A new value for a known name is no growth, nor are
registrations during an ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Final, final
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.nn import Module, ModuleDict, ModuleList
from torch.optim import Optimizer

from ...scopes.compiled import tracked_objects
from ...scopes.framework import BirthLog, LiveMemory, MemoryFacts, ModelFacts
from ...scopes.kinds import device_name
from .births import MODELS_OWN
from .disposal import DisposedTorchTensor
from .graphs.references import MODULE, OWNERS, TorchReferences, described, identity_of, members_of
from .graphs.walk import is_leaf, read_of_graph
from .storages import storage_of, storages_behind

__all__ = [
    "Models",
]

_FRAMES_AT_MOST: Final = 64
"""How many frames of a stack are searched for code that makes an object."""
_LEVELS: Final = 4
"""How many levels of lists, tuples and dicts in an optimizer's state are searched for tensors."""
_LISTS: Final = frozenset({ModuleList, ModuleDict})
_MAKERS: Final = ("__init__", "__setstate__")
_COPYING: Final = "deepcopy"
_OF_MODULES: Final = ("_modules", "_parameters", "_buffers")
_GROWN: Final = 8
"""A module grows if at least this many names were added to it after it was made."""
_Base: Final[Any] = torch._C.TensorBase
_grad: Final[Callable[[Any], Any]] = _Base._grad.__get__
_is_meta: Final[Callable[[Any], bool]] = _Base.is_meta.__get__


@final
class Models:
    """The models in a log of births.

    Parameters
    ----------
    log : BirthLog
        The log in which modules and optimizers are recorded.
    """

    def __init__(self, log: BirthLog) -> None:
        self._log: Any = log
        # By ``id``: code objects of two files may be equal.
        self._codes: WeakKeyDictionary[type, dict[int, CodeType]] = WeakKeyDictionary()
        self._added = _Added()
        # By ``id``: the optimizers to which parameters were added after they were made.
        self._extended: dict[int, ref[Any]] = {}
        # The last answer of `memory_of_models` for `live`, with `after` and `until`: both need a
        # search of all objects, so one search serves both.
        self._live: tuple[int, int, LiveMemory | None] | None = None
        # The modules that this search has found.
        self._modules: list[ref[Any]] | None = None

    def registered(self, module: Any, name: str) -> None:
        """Record a module that is being made; of any other, that a part was added to it."""
        if self._log.recall_memory(module) is None and self._record(module):
            return
        if any(held == name for table in _OF_MODULES for held, _ in members_of(module, table)):
            self._added.discard(module, name)
        elif not _is_making():
            self._added.add(module, name)

    def _record(self, module: Any, op: str | None = None) -> bool:
        """Record a module, or an optimizer, that is being made, and return whether it is."""
        codes = self._codes_that_make(_class_of(module))
        frame: FrameType | None = _getframe()
        depth = 0
        while frame is not None and depth < _FRAMES_AT_MOST and id(frame.f_code) not in codes:
            frame = frame.f_back
            depth += 1
        if frame is None or depth == _FRAMES_AT_MOST:
            return False
        # The constructors of base classes are called by those of the class.
        while frame is not None and id(frame.f_code) in codes:
            frame = frame.f_back
            depth += 1
        self._log.record_owner(module, op, MODULE, "cpu:0", depth)
        return True

    def restored(self, module: Any) -> None:
        """Record a module that was copied or unpickled."""
        self._log.record_owner(module, None, MODULE, "cpu:0", 1)

    def given(self, optimizer: Any) -> None:
        """Record an optimizer that is being made; of any other, that parameters were added."""
        if self._log.recall_memory(optimizer) is None:
            self._record(optimizer, _class_of(optimizer).__name__)
        elif not _is_making():
            known, key = self._extended, id(optimizer)

            def forget(_: object) -> None:
                known.pop(key, None)

            known[key] = ref(optimizer, forget)

    def _stands_for_a_model(self, optimizer: Any, things: _Things) -> bool:
        return (
            self._log.recall_memory(optimizer) is not None
            and id(optimizer) not in self._extended
            and not any(id(tensor) in things.in_modules for tensor, _ in _parameters_of(optimizer))
        )

    def live(self, after: int, until: int) -> LiveMemory | None:
        """Return the models that exist, of the births `after` + 1 to `until`; None without any."""
        known, self._live = self._live, None
        if known is not None and known[:2] == (after, until):
            return known[2]
        references, rows = self._log.recorded_memory(after, until)
        if not references:
            return None
        with TorchReferences().quiet():
            return self._live_of(references, rows, _Things(), self._added.parts())

    def _live_of(
        self, references: Sequence[Any], rows: Sequence[Any], things: _Things, added: _Parts
    ) -> LiveMemory | None:
        places = [place for place, reference in enumerate(references) if isinstance(reference(), OWNERS)]
        if not places:
            return None
        order = [
            thing
            for place in places
            if (thing := references[place]()) is not None
            and (isinstance(thing, Module) or self._stands_for_a_model(thing, things))
        ]
        storages, inner = _storages_of_models(things, order, added)
        return LiveMemory(
            MODULE,
            [references[place] for place in places],
            [rows[place] for place in places],
            partial(_identify, storages),
            _is_alive,
            None,
            partial(_described, storages, inner),
        )

    def memory_of_models(self, references: Sequence[Any], rows: Sequence[Any], after: int, until: int) -> set[Hashable]:
        """Return the identities of the memory that belongs to models.

        It is the memory of the tensors of all modules, with their gradients and the state that
        optimizers keep for them; and the gradients and the state of other tensors that were not
        born in the window.

        Parameters
        ----------
        references, rows : sequence
            The births in the log: see `LiveMemory`. Where there are none, the result is empty.
        after, until : int
            The numbers of the last birth before the window, and of the last one in it.
        """
        found: set[Hashable] = set()
        if not references:
            return found
        with TorchReferences().quiet():
            things = _Things()
            self._modules = [ref(module) for module in things.modules]
            added = self._added.parts()
            self._live = after, until, self._live_of(references, rows, things, added)
            for module in things.modules:
                for _ in _storages_of(_tensors_of(module, added), things.state, found):
                    pass
            for tensor in things.tensors_with_more:
                if not self._is_in_window(tensor, after, until):
                    for part in (_gradient_of(tensor), *things.state.get(id(tensor), ())):
                        found.update(_identities_of(part))
            for option in things.options:
                found.update(_identities_of(option))
            for optimizer in things.optimizers:
                if self._stands_for_a_model(optimizer, things):
                    for _ in _storages_of(_parameters_of(optimizer), things.state, found):
                        pass
        return found

    def latest_modules(self) -> list[Any] | None:
        """Return the modules that `memory_of_models` found last; None if it has not been asked."""
        if self._modules is None:
            return None
        return [module for reference in self._modules if (module := reference()) is not None]

    def _is_in_window(self, tensor: Any, after: int, until: int) -> bool:
        storage = storage_of(tensor)
        row = None if storage is None else self._log.recall_memory(storage)
        return row is not None and after < row.number <= until

    def _codes_that_make(self, cls: type) -> dict[int, CodeType]:
        codes = self._codes.get(cls)
        if codes is None:
            codes = self._codes[cls] = {id(code): code for code in _codes_of(cls)}
        return codes


_Parts = Mapping[int, Mapping[str, Set[str]]]
"""By ``id`` of a module that grows: for each of its tables, the names that were added."""
_NO_NAMES: Final[Mapping[str, frozenset[str]]] = dict.fromkeys(_OF_MODULES, frozenset())


@final
class _Added:
    """The names that were added to modules after they were made."""

    def __init__(self) -> None:
        # By ``id`` of the module: its class may define an equality of its own.
        self._names: dict[int, tuple[ref[Any], set[str]]] = {}

    def add(self, module: Any, name: str) -> None:
        key, known = id(module), self._names
        if key not in known:

            def forget(_: object) -> None:
                known.pop(key, None)

            known[key] = ref(module, forget), set()
        names = known[key][1]
        names.add(name)
        if len(names) >= 2 * _GROWN and not len(names) & (len(names) - 1):
            # At each power of two, forget the names that the module no longer has.
            names &= {held for table in _OF_MODULES for held, _ in members_of(module, table)} | {name}

    def discard(self, module: Any, name: str) -> None:
        """Forget a name that gets a new value: that is no growth."""
        if id(module) in self._names:
            self._names[id(module)][1].discard(name)

    def parts(self) -> _Parts:
        """Return, by ``id``, the modules that grow, with the names in each of their tables."""
        found: dict[int, Mapping[str, Set[str]]] = {}
        for key, (reference, names) in list(self._names.items()):
            module = reference()
            if module is None or len(names) < _GROWN:
                continue
            tables = {table: names.intersection(held for held, _ in members_of(module, table)) for table in _OF_MODULES}
            if sum(map(len, tables.values())) >= _GROWN:
                found[key] = tables
        return found


def _is_making() -> bool:
    """Return whether code is running that makes an object, or copies one."""
    frame: FrameType | None = _getframe(1)
    depth = 0
    while frame is not None and depth < _FRAMES_AT_MOST:
        if frame.f_code.co_name in _MAKERS or frame.f_code.co_name == _COPYING:
            return True
        frame = frame.f_back
        depth += 1
    return False


def _is_alive(reference: Callable[[], object], _number: int) -> bool:
    return reference() is not None


def _class_of(thing: object) -> type:
    # A function, so that type checkers do not infer an unknown type after it.
    return type(thing)


def _codes_of(cls: type) -> Iterator[CodeType]:
    for base in cls.__mro__:
        for name in _MAKERS:
            function: Any = vars(base).get(name)
            while function is not None:
                code = getattr(function, "__code__", None)
                if type(code) is CodeType:
                    yield code
                function = getattr(function, "__wrapped__", None)


_Storages = Mapping[int, tuple[MemoryFacts, ...]]
"""By ``id`` of a model: its storages, with their bytes."""


def _described(storages: _Storages, inner: Collection[int], module: Any) -> ModelFacts:
    own = storages.get(id(module), ())
    if isinstance(module, Optimizer):
        parameters = [tensor for tensor, _ in _parameters_of(module)]
        device = device_name(parameters[0].device) if parameters else "cpu:0"
        return ModelFacts(f"{_class_of(module).__name__} with its parameters", device, len(parameters), own)
    tensors = [tensor for tensor, _ in _tensors_of(module, {})]
    first = next((tensor for tensor in tensors if not _is_meta(tensor)), None)
    parts = len(tensors) + len(list(module.modules()))
    return ModelFacts(
        described(module), "cpu:0" if first is None else device_name(first.device), parts, own, id(module) in inner
    )


def _identify(storages: _Storages, module: Any) -> MemoryFacts | None:
    nbytes = sum(size for _, size in storages.get(id(module), ()))
    return (identity_of(module), nbytes) if nbytes else None


@final
class _Things:
    """All modules and optimizers of the program, and the tensors that belong to them.

    Attributes
    ----------
    modules : list of Module
        All modules.
    optimizers : list of Optimizer
        All optimizers.
    in_modules : set of int
        The ids of the parameters of all modules. Empty where there are no optimizers.
    state : dict
        By ``id`` of a tensor: the tensors that an optimizer keeps for it. Only the first optimizer
        counts. The state of later ones is reported like any other tensor: a list of optimizers that
        grows must be noticed.
    tensors_with_more : list of Tensor
        The tensors that have gradients, and those that optimizers step.
    options : list of Tensor
        The tensors among the options of optimizers, such as a learning rate.
    """

    __slots__ = ("in_modules", "modules", "optimizers", "options", "state", "tensors_with_more")

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.optimizers: list[Any] = []
        self.state: dict[int, list[Any]] = {}
        self.tensors_with_more: list[Any] = []
        self.options: list[Any] = []
        kinds: dict[type, int] = {}
        for thing in tracked_objects(Tensor, Module, Optimizer):
            cls = _class_of(thing)
            kind = kinds.get(cls)
            if kind is None:
                kind = kinds[cls] = _kind_of(cls)
            if kind == _IS_TENSOR:
                if is_leaf(thing) and _gradient_of(thing) is not None:
                    self.tensors_with_more.append(thing)
            elif kind == _IS_MODULE:
                self.modules.append(thing)
            elif kind == _IS_OPTIMIZER:
                self._add(thing)
        self.in_modules = (
            {id(tensor) for module in self.modules for _, tensor in members_of(module, "_parameters")}
            if self.optimizers
            else set[int]()
        )

    def _add(self, optimizer: Any) -> None:
        self.optimizers.append(optimizer)
        names: dict[str, Any] = optimizer.__dict__
        state: dict[object, object] = names.get("state") or {}
        groups: list[dict[str, object]] = names.get("param_groups") or []
        for parameter, values in list(state.items()):
            if id(parameter) not in self.state and (tensors := list(_tensors_in(values, _LEVELS))):
                self.state[id(parameter)] = tensors
        for group in list(groups):
            for name, values in list(group.items()):
                (self.tensors_with_more if name == "params" else self.options).extend(_tensors_in(values, _LEVELS))


_IS_OTHER, _IS_TENSOR, _IS_MODULE, _IS_OPTIMIZER = range(4)


def _kind_of(cls: type) -> int:
    if issubclass(cls, Module):
        # PyTorch calls no hook for registrations in a module of torch.jit. Where such a module is
        # in no model, its tensors are reported like any other.
        return _IS_OTHER if issubclass(cls, torch.jit.ScriptModule) else _IS_MODULE
    if issubclass(cls, Optimizer):
        return _IS_OPTIMIZER
    return _IS_TENSOR if issubclass(cls, Tensor) and cls is not DisposedTorchTensor else _IS_OTHER


def _identities_of(tensor: Any) -> Iterator[Hashable]:
    if tensor is not None and not _is_meta(tensor):
        yield from (identity for identity, _ in storages_behind(tensor))


def _storages_of_models(things: _Things, recorded: Sequence[Any], added: _Parts) -> tuple[_Storages, set[int]]:
    """Return the storages that belong to each model, and the models that were added to another one.

    Both by ``id``. Memory that a model shares with one that was not recorded belongs to that one.
    """
    modules, state = things.modules, things.state
    parents: dict[int, list[Any]] = {}
    links: set[tuple[int, int]] = set()  # parent and child, where the child was added
    for module in modules:
        names = added[id(module)]["_modules"] if id(module) in added else ()
        for name, child in members_of(module, "_modules"):
            parents.setdefault(id(child), []).append(module)
            if name in names:
                links.add((id(module), id(child)))
    known = {id(module) for module in recorded}
    older = [module for module in modules if id(module) not in known]
    storages: dict[int, tuple[MemoryFacts, ...]] = {}
    inner: set[int] = set()
    of_older: set[Hashable] = set()
    for module in older:
        if type(module) not in _LISTS and _is_apart(module, parents, links, set()):
            of_older.update(identity for identity, _ in _storages_of(_tensors_of(module, added), state, set()))
    of_optimizers: set[Hashable] = set()
    for thing in recorded:
        if isinstance(thing, Optimizer):
            # Of several optimizers of a model that is gone, the first stands for it.
            storages[id(thing)] = tuple(_storages_of(_parameters_of(thing), state, of_optimizers, of_older))
        elif type(thing) not in _LISTS and _is_apart(thing, parents, links, set()):
            storages[id(thing)] = tuple(_storages_of(_tensors_of(thing, added), state, set(), of_older))
            if not _is_apart(thing, parents, set(), set()):
                inner.add(id(thing))
    return storages, inner


def _is_apart(module: Any, parents: dict[int, list[Any]], links: set[tuple[int, int]], met: set[int]) -> bool:
    """Return whether a module is only in lists of models and in modules that it was added to.

    Parameters
    ----------
    links : set
        The ids of parent and child for each module that was added.
    """
    if id(module) in met:
        return True
    met.add(id(module))
    return all(
        (id(parent), id(module)) in links or (type(parent) in _LISTS and _is_apart(parent, parents, links, met))
        for parent in parents.get(id(module), ())
    )


def _gradient_of(tensor: Any) -> Any:
    return read_of_graph(_grad, tensor, tensor)


def _storages_of(
    tensors: Iterable[tuple[Any, bool]],
    state: dict[int, list[Any]],
    counted: set[Hashable],
    left_out: Container[Hashable] = (),
) -> Iterator[MemoryFacts]:
    """Yield the storages of tensors, of their gradients and of the optimizers' state for them.

    Storages in `counted` and in `left_out` are not yielded; those that are yielded are added to
    `counted`. Of a tensor that was added to a module only the gradient and the state count: it is
    reported by itself.
    """
    for tensor, is_added in tensors:
        gradient = _gradient_of(tensor) if is_leaf(tensor) else None
        for part in (None if is_added else tensor, gradient, *state.get(id(tensor), ())):
            if part is None or _is_meta(part):
                continue
            for identity, nbytes in storages_behind(part):
                if identity not in counted and identity not in left_out:
                    counted.add(identity)
                    yield identity, nbytes


def _tensors_of(module: Any, added: _Parts) -> Iterator[tuple[Any, bool]]:
    """Yield the tensors of a module, each with whether it was added.

    The tensors of modules that were added are left out.
    """
    met: set[int] = set()
    pending = [module]
    while pending:
        part = pending.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        names = added.get(id(part), _NO_NAMES)
        pending += [child for name, child in members_of(part, "_modules") if name not in names["_modules"]]
        for group in ("_parameters", "_buffers"):
            for name, tensor in members_of(part, group):
                if issubclass(_class_of(tensor), Tensor):
                    yield tensor, name in names[group]


def _parameters_of(optimizer: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the parameters that an optimizer steps, each with False: none was added.

    Other tensors that it steps belong to no model.
    """
    for group in list(optimizer.__dict__.get("param_groups") or ()):
        for tensor in _tensors_in(group.get("params"), _LEVELS):
            if issubclass(_class_of(tensor), MODELS_OWN):
                yield tensor, False


def _tensors_in(tree: Any, levels: int) -> Iterator[Any]:
    cls = _class_of(tree)
    if issubclass(cls, Tensor):
        yield tree
    elif levels and issubclass(cls, (list, tuple, dict)):
        for child in list(tree.values() if issubclass(cls, dict) else tree):
            yield from _tensors_in(child, levels - 1)
