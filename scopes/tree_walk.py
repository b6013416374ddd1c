"""The walk: every resource in a nesting of containers, each once, by path.

The objects' own code is not run, but for that of mappings and their views, and of pytrees.

What is understood is walked:

* containers: list, tuple and namedtuple, dict and any other Mapping, set, frozenset, deque,
  dataclasses, attrs classes, arrays of objects, and whatever else the instances of their subclasses
  hold as attributes;
* types that are registered as pytrees, by the function they were registered with: see
  `walk_pytrees_with`;
* the objects of libraries that are there to hold arrays or state, through their attributes or by a
  function of ours: see `walk_attributes_of` and `walk_with`.

A *model* (`walk_as_models`: a module, a metric, an optimizer, what `disposescope.keeps` names) is
walked last, and in another way. What nobody owns in it is the model's own and is passed over: its
parameters, its buffers. And what it holds may be of any type.

Anything else is a leaf, unless it hides a resource that the caller would lose. It does so where a
search of what it refers to (`gc.get_referents`, bounded) meets one that the walk has not met. Then
the walk refuses, before anything is changed: whoever holds a resource may be a cache or a callback
that is not there to hand it on. In two places an object of unknown type is walked through its
attributes instead, because it belongs to somebody who has been named: inside of a model, and in
what a decorated function returns.
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
Asked = Callable[[object], bool]
"""A question about an object that the walk has met."""

LEAF_TYPES: Final[frozenset[type]] = frozenset({
    type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice, type(...),
    type(NotImplemented), type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType,
    types.TracebackType, Entry, HeldEntry, StrongEntry,
})  # fmt: skip
"""Types whose exact instances hold nothing to be found."""

Children = Iterator[tuple[str, object]]
"""What an object holds, each labelled as code would reach it."""

Walker = Callable[[Any], Children]

_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)

SEARCH_LIMIT: Final = 10_000
"""How many objects are looked into inside one object of an unknown type."""
_MET_LIMIT: Final = 100 * SEARCH_LIMIT


def walk_pytrees_with(walker: Callable[[object], Children | None]) -> None:
    """Have a function take objects apart whose types are registered as pytrees.

    It may run code of the program, and is therefore asked by verbs alone, and not by the search for
    holders.
    """
    global _pytree_children
    _pytree_children = walker


def _no_pytrees(_node: object) -> Children | None:
    return None


_pytree_children: Callable[[object], Children | None] = _no_pytrees


# Classes of libraries, by name: nothing is imported for them.


class _Known(NamedTuple):
    """What is known of a class, or of all classes of a module or package."""

    # The class itself, where it was not named: its ``id`` is good as long as it lives.
    named: str | type
    walker: Walker
    keeps: bool


_LOOK_INTO, _KEEPER, _LOOK_PAST = range(3)
"""What compiled code does with a class's instances, or a module, in the order of ``enum look``."""


@final
class KnownClasses:
    """How the instances of named classes are walked, and which of them keep what they hold.

    The one instance is `CLASSES`. What is known of a base class holds for those derived from it.

    Attributes
    ----------
    any_keeps : bool
        Whether any class, or module, keeps what it holds.
    """

    __slots__ = ("_known", "_looks", "_walkers", "any_keeps")

    def __init__(self) -> None:
        self._known: dict[str | int, _Known] = {}
        # Of the types that were asked for.
        self._walkers: dict[type, Walker | None] = {}
        self._looks: dict[int | str, Any] = {}
        self.any_keeps = False

    def add(self, names: tuple[str | type, ...], walker: Walker, *, keeps: bool = False) -> None:
        """Record classes, by themselves or by their names or those of modules around them.

        A walker that one has stays.
        """
        for named in names:
            key = named if isinstance(named, str) else id(named)
            before = self._known.get(key, _Known(named, walker, keeps=False))
            self._known[key] = before._replace(keeps=keeps or before.keeps)
        self._walkers.clear()
        if keeps:
            self.any_keeps = any(known.keeps for known in self._known.values())
            # What is known of each class is forgotten. A search that runs goes on with the one
            # before.
            self._looks = {}

    def walker_of(self, cls: type) -> Walker | None:
        """Return the walker of the nearest base class that has one; None where none has.

        A class has it for itself, or by the innermost module around it.
        """
        try:
            return self._walkers[cls]
        except KeyError:
            known = next(self._known_of(cls), None)
            if len(self._walkers) >= _REMEMBERED:
                # Types come and go, and what is remembered lives on.
                self._walkers.clear()
            walker = self._walkers[cls] = None if known is None else known.walker
            return walker

    def _known_of(self, cls: type) -> Iterator[_Known]:
        # By identity: what equals a class, and its hash, may be for its metaclass to say.
        for base in mro_of(cls):
            known = self._known.get(id(base))
            if known is not None:
                yield known
            # Of a class it may be anything.
            module = _module_of(base)
            name = f"{module}.{name_of(base)}" if type(module) is str else name_of(base)
            while name:
                known = self._known.get(name)
                if known is not None:
                    yield known
                name = name.rpartition(".")[0]

    def kept(self, entries: list[Entry]) -> list[Entry]:
        """Return those entries of which an object that keeps what it holds has a part."""
        return kept_entries(entries, KINDS.anchored, self._variables(), self._look, self._looks)

    def _look(self, cls: Any) -> int:
        # A class may have a metaclass that answers isinstance() with code of its own.
        if type(cls) is str:
            return _LOOK_INTO if is_of_the_program(cls) else _LOOK_PAST
        if any(base is types.ModuleType or base is ScopeState for base in mro_of(cls)):
            return _LOOK_PAST
        if any(known.keeps for known in self._known_of(cls)):
            return _KEEPER
        kind = find_kind(cls)
        return _LOOK_INTO if kind is None or kind.is_composite else _LOOK_PAST

    def _variables(self) -> tuple[dict[str, Any], ...]:
        """Return the variables of the imported modules that keep what they hold."""
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
_REMEMBERED: Final = 4096


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
    """Walk the instances of some classes as models, which keep what nobody owns in them: see above.

    Parameters
    ----------
    *names : str or type
        Classes, or names as for `walk_attributes_of`, which come first where both are given.
    """
    CLASSES.add(names, _parts_of_model)


def add_keepers(*names: str | type) -> None:
    """Let instances of some classes keep what they hold when a block ends, and walk them as models.

    Parameters
    ----------
    *names : str or type
        As for `walk_as_models`. Of a module the variables are meant too.
    """
    CLASSES.add(names, _parts_of_model, keeps=True)


def children_found_by_frameworks(node: object) -> Children | None:
    """Return the children of an object by the first framework that knows it; None for none."""
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
        Tells whether an object met inside an object of unknown type would be lost. Without it
        nothing is searched.
    what : str
        What the root is called in a message.
    plain : list, optional
        Gets the arrays that are plain memory, each once.
    is_owned : callable, optional
        Tells whether anybody owns a resource or an array. Without it models are leaves.
    is_result : bool
        Whether objects of unknown type are walked through their attributes: see above.

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
    judged = 0
    # What counts inside of models, once the walk is there.
    only: Asked | None = None
    while True:
        while pending:
            node, path = pending.pop()
            cls = type(node)
            if cls in LEAF_TYPES or id(node) in met:
                continue
            if kind_of(node) is not None:
                if only is None or only(node):
                    met[id(node)] = node
                    found.append(node)
                continue
            # Kept until the end of the walk: an id is only as good as the object is alive.
            met[id(node)] = node
            if plain is not None and HOOKS.memory.is_plain(node) and (only is None or only(node)):
                plain.append(node)
            children = _children(node, cls)
            if children is None:
                (models if only is None and _is_model(cls) else unknown).append((node, path))
                continue
            pending.extend([(child, (path, label)) for label, child in children][::-1])
        if judged < len(unknown):
            # All that is reached otherwise has been met: what is still found would be lost.
            node, path = unknown[judged]
            judged += 1
            if only is None or not _is_model(type(node)):
                hidden = None if hides is None else _hidden_in(node, hides, met)
                if hidden is None:
                    continue
                if not (is_result or only is not None) or not _has_attributes(node):
                    raise _refusal(node, hidden, what + _spelled(path))
            pending.extend([(child, (path, label)) for label, child in _parts(node)][::-1])
        elif models and is_owned is not None and only is None:
            only = is_owned
            hides = partial(_both, hides, is_owned)
            unknown, judged = models, 0
        else:
            return found


def _both(hides: Asked | None, is_owned: Asked, thing: object) -> bool:
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
    # A function, so that type checkers do not make a container of unknown things out of what is
    # asked.
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
    """Return what an instance holds in its ``__dict__`` and its slots, by name.

    Read past properties and ``__getattr__``; no code of the program is run.

    Parameters
    ----------
    node : object
        The instance.
    of_compiled_classes : bool
        Whether the members of its compiled base classes are returned too, as ``func`` of a partial.
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
                # An empty slot raises AttributeError, a member of the interpreter's own may raise
                # others.
                try:
                    value = member.__get__(node)
                except (AttributeError, TypeError, ValueError):
                    continue
                yield name, value


def _has_attributes(node: object) -> bool:
    """Return whether an object of unknown type can be walked through its attributes.

    Not a function: it has attributes, and refers to its module and its closure besides.
    """
    cls: type = type(node)
    return cls is not types.FunctionType and (
        instance_dict_of(node) is not None or any("__slots__" in space_of(base) for base in mro_of(cls))
    )


def _parts(node: Any) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object, and all else that it refers to.

    A compiled class may keep that for itself.
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
    """Return the ``__dict__`` of an instance, read past any property of that name.

    None where it has none, and for a ``threading.local``.
    """
    if issubclass(type(node), threading.local):
        # It makes one for this thread where there is none, and may call the program's __init__ for
        # it.
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
    """Return what the caller would lose in an object of unknown type, by a limited search.

    What the walk has met is not lost. None where nothing was found.
    """
    # In breadth: what is near is found, however large its neighbours are.
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
    """Raise `UnknownKindError` for a tree without resources, unless there is nothing in it at all.

    None is nothing, and so is an empty container. Models and what else is walked by the names of
    its classes is understood, whatever it holds.
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
    cls = type(node)
    if cls is types.FunctionType:
        # Not its globals: a function is not the owner of its module.
        return [getattr(node, name) for name in ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")]
    # Only the type is asked: asking an object for its __class__ may run its code, and raises for a
    # dead proxy. What refers to a scope does not hide what the scope owns.
    if issubclass(cls, (type, types.ModuleType, ScopeState)):
        return []
    return gc.get_referents(node)


def _spelled(path: PathTo) -> str:
    labels: list[str] = []
    while path is not None:
        path, label = path
        labels.append(label)
    return "".join(reversed(labels))
