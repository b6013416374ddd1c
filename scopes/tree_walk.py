"""The walk: finds every resource in a nesting of containers, each once.

No code of the objects is run, except that of mappings, their views, and pytrees.

These objects are walked:

* containers: list, tuple and namedtuple, dict and any other Mapping, set, frozenset, deque,
  dataclasses, attrs classes, arrays of objects, and the attributes of instances of their
  subclasses;
* types that are registered as pytrees, by the function they were registered with: see
  `walk_pytrees_with`;
* objects of libraries that hold arrays or state, through their attributes or by a function of this
  package: see `walk_attributes_of` and `walk_with`.

A *model* (`walk_as_models`: a module, a metric, an optimizer, an object that `disposescope.keeps`
names) is walked last, and differently. Unowned resources in it, such as parameters and buffers,
belong to the model and are passed over. Objects of every type inside of it are walked.

Any other object is a leaf, unless it hides a resource that the caller would lose: a bounded search
with `gc.get_referents` finds a resource in it that the walk has not met. Then the walk raises
before anything is changed, because the object may be a cache or a callback that only happens to
refer to the resource. In two places an object of unknown type is walked through its attributes
instead, because what it holds was asked for: inside of a model, and in what a decorated function
returns.
"""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from functools import partial
from typing import Any, Final, NamedTuple, cast, final

from .base.errors import UnknownKindError
from .base.sites import is_of_the_program
from .base.type_cache import TypeCache
from .compiled import Entry, HeldEntry, ScopeState, StrongEntry, kept_entries
from .context import HOOKS
from .kinds import KINDS, advice_for, find_kind, is_own, kind_of, module_of, mro_of, name_of, qualified_name, space_of

__all__ = [
    "CLASSES",
    "LEAF_TYPES",
    "add_keepers",
    "attributes_of",
    "children_found_by_frameworks",
    "instance_dict_of",
    "refuse_without_resources",
    "resources_in",
    "walk_as_models",
    "walk_attributes_of",
    "walk_pytrees_with",
    "walk_with",
]

PathTo = tuple[Any, str] | None
"""The path to an object: the path to its parent, and a label as in code; None for the root."""
Asked = Callable[[object], bool]
"""A predicate of an object that the walk has met."""

LEAF_TYPES: Final[frozenset[type]] = frozenset({
    type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice, type(...),
    type(NotImplemented), type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType,
    types.TracebackType, Entry, HeldEntry, StrongEntry,
})  # fmt: skip
"""Types whose exact instances hold no resources."""

Children = Iterator[tuple[str, object]]
"""The objects that an object holds, each with a label as in code, such as ``.weight``."""

Walker = Callable[[Any], Children]

_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)

SEARCH_LIMIT: Final = 10_000
"""How many objects are looked into inside one object of an unknown type."""
_MET_LIMIT: Final = 100 * SEARCH_LIMIT
"""How many objects such a search may meet: some of them may be large containers."""


def walk_pytrees_with(walker: Callable[[object], Children | None]) -> None:
    """Set the function that returns the children of an object whose type is a registered pytree.

    It may run code of the program. Therefore only verbs use it, not the search for holders.
    """
    global _pytree_children
    _pytree_children = walker


def _no_pytrees(_node: object) -> Children | None:
    return None


_pytree_children: Callable[[object], Children | None] = _no_pytrees


# Classes of libraries, mostly given by name, so that nothing is imported for them.


class _Known(NamedTuple):
    """How the instances of a class, or of all classes of a module or package, are walked."""

    # The class or its name. A class is kept here, because its ``id`` is a key of `_known`.
    named: str | type
    walker: Walker
    keeps: bool


_LOOK_INTO, _KEEPER, _LOOK_PAST = range(3)
"""The answers of `KnownClasses._look`: those of ``enum look`` in src/held/keepers.c."""


@final
class KnownClasses:
    """How the instances of named classes are walked, and which of them keep what they hold.

    The one instance is `CLASSES`. A record of a class holds for classes derived from it.

    Attributes
    ----------
    any_keeps : bool
        Whether any class, or module, keeps what it holds.
    """

    __slots__ = ("_known", "_looks", "_walkers", "any_keeps")

    def __init__(self) -> None:
        # By name, or by ``id`` of a class.
        self._known: dict[str | int, _Known] = {}
        # A cache of `walker_of`.
        self._walkers: TypeCache[Walker | None] = TypeCache()
        # A cache of `_look`, which compiled code fills: see `compiled.kept_entries`.
        self._looks: dict[int | str, Any] = {}
        self.any_keeps = False

    def add(self, names: tuple[str | type, ...], walker: Walker, *, keeps: bool = False) -> None:
        """Record classes, or names of classes, modules and packages.

        What was recorded before keeps its walker.
        """
        for named in names:
            key = named if isinstance(named, str) else id(named)
            before = self._known.get(key, _Known(named, walker, keeps=False))
            self._known[key] = before._replace(keeps=keeps or before.keeps)
        self._walkers.clear()
        if keeps:
            self.any_keeps = any(known.keeps for known in self._known.values())
            # A new dict, because a search that is running still uses the old one.
            self._looks = {}

    def walker_of(self, cls: type) -> Walker | None:
        """Return the walker of a class or of its nearest base class that has one; else None.

        A class has the walker that was recorded for itself or for the innermost module around it.
        """
        try:
            return self._walkers.known[id(cls)]
        except KeyError:
            known = next(self._known_of(cls), None)
            walker = None if known is None else known.walker
            self._walkers.remember(cls, walker)
            return walker

    def _known_of(self, cls: type) -> Iterator[_Known]:
        """Yield the records of a class and its bases, the nearest first."""
        # By ``id``, because a metaclass may define equality and hash of a class.
        for base in mro_of(cls):
            known = self._known.get(id(base))
            if known is not None:
                yield known
            # The ``__module__`` of a class may be of any type.
            module = _module_of(base)
            name = f"{module}.{name_of(base)}" if type(module) is str else name_of(base)
            while name:
                known = self._known.get(name)
                if known is not None:
                    yield known
                name = name.rpartition(".")[0]

    def kept(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries of resources that a keeper holds, or a part of them."""
        return kept_entries(entries, KINDS.anchored, self._variables(), self._look, self._looks)

    def _look(self, cls: Any) -> int:
        """Return what the search for keepers does with a class's instances, or a module by name."""
        # Not isinstance(), which may run code of the metaclass.
        if type(cls) is str:
            return _LOOK_INTO if is_of_the_program(cls) else _LOOK_PAST
        if any(base is types.ModuleType or base is ScopeState for base in mro_of(cls)):
            return _LOOK_PAST
        if any(known.keeps for known in self._known_of(cls)):
            return _KEEPER
        kind = find_kind(cls)
        return _LOOK_INTO if kind is None or kind.is_composite else _LOOK_PAST

    def _variables(self) -> tuple[dict[str, Any], ...]:
        """Return the dicts of the imported modules that are keepers themselves."""
        modules = [
            sys.modules.get(name) for name, known in self._known.items() if known.keeps and isinstance(name, str)
        ]
        return tuple([vars(module) for module in modules if module is not None])


def _module_of(cls: type) -> object:
    try:
        return module_of(cls)
    except AttributeError:
        # A compiled class may have none.
        return None


CLASSES: Final = KnownClasses()


def _is_model(cls: type) -> bool:
    return CLASSES.walker_of(cls) is _parts_of_model


def walk_attributes_of(*names: str) -> None:
    """Walk the instances of some classes, and of their subclasses, through their attributes.

    Parameters
    ----------
    *names : str
        The names of classes, with their modules, or of modules and packages: all classes in them.
    """
    CLASSES.add(names, _parts)


def walk_with(walker: Walker, *names: str) -> None:
    """Walk the instances of some classes with a function.

    Parameters
    ----------
    walker : callable
        Given an instance, returns what it holds. Runs no code of the program.
    *names : str
        As for `walk_attributes_of`.
    """
    CLASSES.add(names, walker)


def walk_as_models(*names: str | type) -> None:
    """Walk the instances of some classes as models: see the top of this file.

    Parameters
    ----------
    *names : str or type
        Classes, or names as for `walk_attributes_of`. A class given itself comes before its name,
        and its name before those of the modules around it.
    """
    CLASSES.add(names, _parts_of_model)


def add_keepers(*names: str | type) -> None:
    """Let instances of some classes keep what they hold when a block ends, and walk them as models.

    Parameters
    ----------
    *names : str or type
        As for `walk_as_models`. The variables of a module are kept, too.
    """
    CLASSES.add(names, _parts_of_model, keeps=True)


def children_found_by_frameworks(node: object) -> Children | None:
    """Return the children of an object, from the first framework that knows it; else None."""
    for walker in HOOKS.children:
        children = walker(node)
        if children is not None:
            return children
    return None


def resources_in(
    tree: object,
    hides: Asked | None = None,
    what: str = "the tree",
    plain: list[object] | None = None,
    *,
    is_owned: Asked | None = None,
    is_result: bool = False,
) -> list[object]:
    """Return every resource in a tree, in order, each once; those in models last.

    Parameters
    ----------
    tree : object
        A resource, or any nesting of containers. Cycles end.
    hides : callable, optional
        Returns whether an object inside of an object of unknown type would be lost. Without it,
        objects of unknown type are not searched.
    what : str
        What messages call the root.
    plain : list, optional
        Gets the plain arrays, each once.
    is_owned : callable, optional
        Returns whether a scope owns a resource or a plain array. Without it models are leaves.
    is_result : bool
        Whether the tree is what a decorated function returned: objects of unknown type are walked
        through their attributes then.

    Returns
    -------
    list
        The resources; a composite stands for its members.

    Raises
    ------
    UnknownKindError
        An object of unknown type hides a resource.
    """
    kind = kind_of(tree)
    if kind is not None:
        return [tree]
    found: list[object] = []
    met: dict[int, object] = {}
    pending: list[tuple[object, PathTo]] = [(tree, None)]
    models: list[tuple[object, PathTo]] = []
    unknown: list[tuple[object, PathTo]] = []
    # How many of the unknown objects have been handled.
    judged = 0
    # Inside of models, the filter for what is found; None while the walk is outside of them.
    is_wanted: Asked | None = None
    while True:
        while pending:
            node, path = pending.pop()
            cls = type(node)
            if cls in LEAF_TYPES or id(node) in met:
                continue
            if kind_of(node) is not None:
                if is_wanted is None or is_wanted(node):
                    met[id(node)] = node
                    found.append(node)
                continue
            # Kept alive until the end of the walk, so that its id is not used again.
            met[id(node)] = node
            if plain is not None and HOOKS.memory.is_plain(node) and (is_wanted is None or is_wanted(node)):
                plain.append(node)
            children = _children(node, cls)
            if children is None:
                (models if is_wanted is None and _is_model(cls) else unknown).append((node, path))
                continue
            pending.extend([(child, (path, label)) for label, child in children][::-1])
        if judged < len(unknown):
            # All that is reached in other ways has been met: a resource that only this object leads
            # to would be lost.
            node, path = unknown[judged]
            judged += 1
            if is_wanted is None or not _is_model(type(node)):
                hidden = None if hides is None else _hidden_in(node, hides, met)
                if hidden is None:
                    continue
                if not (is_result or is_wanted is not None) or not _has_attributes(node):
                    raise _refusal(node, hidden, what + _spelled(path))
            pending.extend([(child, (path, label)) for label, child in _parts(node)][::-1])
        elif models and is_owned is not None and is_wanted is None:
            is_wanted = is_owned
            hides = partial(_hides_and_is_owned, hides, is_owned)
            unknown, judged = models, 0
        else:
            return found


def _hides_and_is_owned(hides: Asked | None, is_owned: Asked, thing: object) -> bool:
    return hides is not None and hides(thing) and is_owned(thing)


def _children(node: Any, cls: type) -> Iterator[tuple[str, object]] | None:
    """Return a container's children, labelled as code would reach them; None for other objects."""
    if cls is list or cls is tuple:
        return ((f"[{index}]", child) for index, child in enumerate(node))
    if cls is dict:
        # A copy, because another thread may change it meanwhile.
        return _items(list(node.items()))
    if cls is set or cls is frozenset:
        return ((f".<element {index}>", child) for index, child in enumerate(node))
    for base, iterate in _SEQUENCES:
        if issubclass(cls, base):
            return _with_state(((f"[{index}]", child) for index, child in enumerate(iterate(node))), node)
    if _is_a(cls, dict):
        return _with_state(_items(list(_dict_items(node))), node)
    walker = CLASSES.walker_of(cls)
    if walker is _parts_of_model:
        if not _is_a(cls, Mapping):
            return None
    elif walker is not None:
        return walker(node)
    children = children_found_by_frameworks(node)
    if children is not None:
        # A subclass of arrays may hold others, as a masked array its mask.
        return _with_state(children, node) if cls.__dictoffset__ else children
    children = _pytree_children(node)
    if children is not None:
        return children
    if _is_a(cls, MappingView):
        return ((f".<element {index}>", child) for index, child in enumerate(node))
    if _is_a(cls, Mapping):
        return _with_state(_items((key, node[key]) for key in node), node)
    if _has_fields(cls):
        return _state(node)
    return None


_SEQUENCES: Final[tuple[tuple[type, Callable[[Any], Iterator[object]]], ...]] = tuple(
    # Of the base itself: a subclass may iterate over something other than what it holds.
    (base, base.__dict__["__iter__"])
    for base in cast("tuple[type, ...]", (tuple, list, set, frozenset, deque))
)


_dict_items: Final[Callable[[Any], Iterable[tuple[Any, object]]]] = dict.__dict__["items"]


def _is_a(cls: type, base: type) -> bool:
    # Hides issubclass() from type checkers, which would narrow the type of the object.
    return issubclass(cls, base)


def _items(items: Iterable[tuple[object, object]]) -> Iterator[tuple[str, object]]:
    for key, value in items:
        if type(key) not in LEAF_TYPES:
            yield f".<key {name_of(type(key))}>", key
        yield f"[{key!r}]" if type(key) in (str, int) else f"[<{name_of(type(key))}>]", value


def _with_state(children: Iterator[tuple[str, object]], node: object) -> Iterator[tuple[str, object]]:
    yield from children
    yield from _state(node)


def _state(node: object) -> Iterator[tuple[str, object]]:
    return ((f".{name}", value) for name, value in attributes_of(node, of_compiled_classes=False))


def attributes_of(node: object, *, of_compiled_classes: bool) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an instance in its ``__dict__`` and its slots, by name.

    Properties and ``__getattr__`` are not called; no code of the program is run.

    Parameters
    ----------
    node : object
        The instance.
    of_compiled_classes : bool
        Whether members of compiled base classes are included, such as ``func`` of a partial.
    """
    attributes = instance_dict_of(node)
    if attributes is not None:
        yield from attributes.copy().items()
    for base in mro_of(type(node)):
        space = space_of(base)
        if not of_compiled_classes and "__slots__" not in space:
            continue
        for name, member in dict(space).items():
            if type(member) is types.MemberDescriptorType and name != "__dict__":
                # An empty slot raises AttributeError; members of Python's own types may raise
                # other errors.
                try:
                    value = member.__get__(node)
                except (AttributeError, TypeError, ValueError):
                    continue
                yield name, value


def _has_attributes(node: object) -> bool:
    """Return whether an object of unknown type can be walked through its attributes.

    A function cannot: besides its attributes it refers to its module and its closure.
    """
    cls: type = type(node)
    return cls is not types.FunctionType and (
        instance_dict_of(node) is not None or any("__slots__" in space_of(base) for base in mro_of(cls))
    )


def _parts(node: Any) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object, and whatever else it refers to.

    A compiled class may hold objects that are no attributes.
    """
    attributes = instance_dict_of(node)
    referents: list[object] = gc.get_referents(node)
    yield from _state(node)
    for referent in referents:
        if referent is not attributes:
            yield f".<{name_of(type(referent))}>", referent


def _parts_of_model(node: object) -> Children:
    return _parts(node)


def instance_dict_of(node: object) -> dict[str, object] | None:
    """Return the ``__dict__`` of an instance, without calling a property of that name.

    None if it has none, and for a ``threading.local``.
    """
    if issubclass(type(node), threading.local):
        # Reading its dict may make one for this thread, and call the program's __init__.
        return None
    for base in mro_of(type(node)):
        descriptor = space_of(base).get("__dict__")
        if type(descriptor) in _DESCRIPTORS and base is not type:
            attributes = cast("Any", descriptor).__get__(node)
            return cast("dict[str, object]", attributes) if type(attributes) is dict else None
    return None


def _has_fields(cls: type) -> bool:
    return any("__dataclass_fields__" in space or "__attrs_attrs__" in space for space in map(space_of, mro_of(cls)))


def _hidden_in(node: object, hides: Asked, met: dict[int, object]) -> object | None:
    """Search an object of unknown type, and return a resource that the caller would lose, or None.

    Objects that the walk has met, `met`, are not lost. The search is bounded.
    """
    # Breadth-first, so that near resources are found, however large their neighbours are.
    pending: deque[object] = deque([node])
    seen: dict[int, object] = {}
    for _ in range(SEARCH_LIMIT):
        if not pending or len(seen) > _MET_LIMIT:
            return None
        for referent in _referents(pending.popleft()):
            key = id(referent)
            if type(referent) in LEAF_TYPES or key in seen or key in met:
                continue
            seen[key] = referent
            if hides(referent):
                return referent
            pending.append(referent)
    return None


def _refusal(node: object, hidden: object, where: str) -> UnknownKindError:
    cls = type(node)
    name = qualified_name(cls)
    teach = f"Teach it with disposescope.register_kind({name_of(cls)}, members=...), or pass" if is_own(cls) else "Pass"
    return UnknownKindError(
        f"{where} is a {name}, a type that is not understood, and it hides a "
        f"{name_of(type(hidden))} that would be lost. {teach} the tensors themselves",
        type_name=name,
        path=where,
    )


def refuse_without_resources(tree: object, verb: str) -> None:
    """Raise `UnknownKindError` for a tree that has objects, but no resources.

    None and empty containers are no objects here. A model, or another instance of a named class
    (`CLASSES`), is accepted, whatever it holds.
    """
    met: dict[int, object] = {}
    pending: list[tuple[object, PathTo]] = [(tree, None)]
    while pending:
        node, path = pending.pop()
        cls = type(node)
        if node is None or id(node) in met:
            continue
        met[id(node)] = node
        is_leaf = cls in LEAF_TYPES
        if not is_leaf and CLASSES.walker_of(cls) is not None:
            continue
        children = None if is_leaf else _children(node, cls)
        if children is None:
            name = qualified_name(cls)
            where = (
                "" if path is None else f"there is no resource in the {name_of(type(tree))}: its {_spelled(path)} is "
            )
            raise UnknownKindError(
                f"{verb}: {where}an instance of {name}{' is no resource' if path is None else ''}; {advice_for(cls)}",
                type_name=name,
                path=f"the tree given to {verb}(){_spelled(path)}",
            )
        pending.extend([(child, (path, label)) for label, child in children][::-1])


def _referents(node: object) -> list[object]:
    """Return what an object refers to, for `_hidden_in`."""
    cls = type(node)
    if cls is types.FunctionType:
        # Without its globals: the variables of its module are not the function's.
        return [getattr(node, name) for name in ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")]
    # isinstance() reads __class__, which may run code of the object, and raises for a dead proxy.
    # An object that refers to a scope does not hide what the scope owns.
    if issubclass(cls, (type, types.ModuleType, ScopeState)):
        return []
    return gc.get_referents(node)


def _spelled(path: PathTo) -> str:
    """Return a path as code, such as ``[0].weight``."""
    labels: list[str] = []
    while path is not None:
        path, label = path
        labels.append(label)
    return "".join(reversed(labels))
