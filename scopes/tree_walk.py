"""The walk: every resource in a nesting of containers, each once, by path, without running the objects' own code.

What is understood is walked: list, tuple and namedtuple, dict and any other Mapping, set,
frozenset, deque, dataclasses, attrs classes, arrays of objects, and whatever else the instances of
their subclasses hold as attributes. Anything else is a leaf, unless it hides a resource that the
caller would lose: then the walk refuses, before anything is changed.
"""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from typing import Any, Final, cast

from .errors import UnknownKindError
from .kinds import kind_of, mro_of, name_of, qualified_name, space_of
from .plain_memory import MEMORY

__all__ = [
    "LEAF_TYPES",
    "add_leaf_types",
    "add_walker",
    "children_found_by_frameworks",
    "resources_in",
]

Path = tuple[Any, str] | None
Hides = Callable[[object], bool]

LEAF_TYPES: Final[set[type]] = {
    type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice, type(...),
    type(NotImplemented), type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType,
    types.TracebackType,
}  # fmt: skip
"""Types whose exact instances hold nothing to be found. To be read only: see `add_leaf_types`."""

Children = Iterator[tuple[str, object]]
"""What an object holds, each labelled as code would reach it."""

_walkers: Final[list[Callable[[object], Children | None]]] = []

SEARCH_LIMIT: Final = 10_000
"""How many objects are looked into inside one object of an unknown type."""
_MET_LIMIT: Final = 100 * SEARCH_LIMIT


def add_leaf_types(*types: type) -> None:
    """Look into exact instances of these types no more."""
    LEAF_TYPES.update(types)


def add_walker(walker: Callable[[object], Children | None]) -> None:
    """Ask a function for the children of what is no container of Python's; None is nothing to say."""
    _walkers.append(walker)


def children_found_by_frameworks(node: object) -> Children | None:
    """Return the children of an object as the first framework tells that knows it; None where none does."""
    for walker in _walkers:
        children = walker(node)
        if children is not None:
            return children
    return None


def resources_in(
    tree: object, hides: Hides | None = None, what: str = "the tree", plain: list[object] | None = None
) -> list[object]:
    """Every resource in a tree, in order, each once.

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
    pending: list[tuple[object, Path]] = [(tree, None)]
    while pending:
        node, path = pending.pop()
        cls = type(node)
        if cls in LEAF_TYPES or id(node) in met:
            continue
        # Kept until the end of the walk: an id is only as good as the object is alive.
        met[id(node)] = node
        if kind_of(node) is not None:
            found.append(node)
            continue
        if plain is not None and MEMORY and MEMORY[0].is_plain(node):
            plain.append(node)
        children = _children(node, cls)
        if children is None:
            if hides is not None:
                _refuse_if_it_hides(node, path, hides, what)
            continue
        pending.extend([(child, (path, label)) for label, child in children][::-1])
    return found


def _children(node: Any, cls: type) -> Iterator[tuple[str, object]] | None:
    """The children of a container, labelled as code would reach them; None for what is no container."""
    if cls is list or cls is tuple:
        return ((f"[{index}]", child) for index, child in enumerate(node))
    if cls is dict:
        # A copy, because another thread may change it meanwhile.
        return _items(list(node.items()))
    if cls is set or cls is frozenset:
        return ((f".<element {index}>", child) for index, child in enumerate(node))
    for base, iterate in _SEQUENCES:
        if issubclass(cls, base):
            return _with_state(((f"[{index}]", child) for index, child in enumerate(iterate(node))), node, cls)
    if _is_a(cls, dict):
        return _with_state(_items(list(_dict_items(node))), node, cls)
    if _is_a(cls, MappingView):
        return ((f".<element {index}>", child) for index, child in enumerate(node))
    if _is_a(cls, Mapping):
        return _with_state(_items((key, node[key]) for key in node), node, cls)
    if _has_fields(cls):
        return _state(node, cls)
    children = children_found_by_frameworks(node)
    # A subclass of arrays may hold others, as a masked array its mask.
    return _with_state(children, node, cls) if children is not None and cls.__dictoffset__ else children


_SEQUENCES: Final[tuple[tuple[type, Callable[[Any], Iterator[object]]], ...]] = tuple(
    # Of the base itself: a subclass may iterate over something else than what it holds.
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


def _with_state(children: Iterator[tuple[str, object]], node: object, cls: type) -> Iterator[tuple[str, object]]:
    yield from children
    yield from _state(node, cls)


def _state(node: object, cls: type) -> Iterator[tuple[str, object]]:
    """What an instance holds in its ``__dict__`` and its slots, read past properties and ``__getattr__``."""
    mro = mro_of(cls)
    for base in mro:
        holder = space_of(base).get("__dict__")
        if type(holder) is types.GetSetDescriptorType:
            attributes = holder.__get__(node)
            if type(attributes) is dict:
                for name, value in list(cast("dict[str, object]", attributes).items()):
                    yield f".{name}", value
            break
    for base in mro:
        space = space_of(base)
        for name, member in space.items():
            if type(member) is types.MemberDescriptorType and "__slots__" in space:
                try:
                    yield f".{name}", member.__get__(node)
                except AttributeError:
                    continue


def _has_fields(cls: type) -> bool:
    return any("__dataclass_fields__" in space or "__attrs_attrs__" in space for space in map(space_of, mro_of(cls)))


def _refuse_if_it_hides(node: object, path: Path, hides: Hides, what: str) -> None:
    """Search an object of unknown type, as far as the limit, for what the caller would lose."""
    # In breadth: what is near is found, however large its neighbours are.
    pending: deque[object] = deque([node])
    met: dict[int, object] = {id(node): node}
    for _ in range(SEARCH_LIMIT):
        if not pending or len(met) > _MET_LIMIT:
            return
        for referent in _referents(pending.popleft()):
            if type(referent) in LEAF_TYPES or id(referent) in met:
                continue
            met[id(referent)] = referent
            if hides(referent):
                cls = type(node)
                name = qualified_name(cls)
                where = what + _spelled(path)
                raise UnknownKindError(
                    f"{where} is a {name}, a type that is not understood, and it hides a "
                    f"{name_of(type(referent))} that would be lost. Teach it with "
                    f"disposescope.register_kind({name_of(cls)}, members=...), or pass the tensors themselves",
                    type_name=name,
                    path=where,
                )
            pending.append(referent)


def _referents(node: object) -> list[object]:
    cls = type(node)
    if cls is types.FunctionType:
        # Not its globals: a function is not the owner of its module.
        return [getattr(node, name) for name in ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")]
    # The type alone tells: asking an object for its __class__ may run its code, and raises for a
    # dead proxy.
    if issubclass(cls, (type, types.ModuleType)):
        return []
    return gc.get_referents(node)


def _spelled(path: Path) -> str:
    labels: list[str] = []
    while path is not None:
        path, label = path
        labels.append(label)
    return "".join(reversed(labels))
