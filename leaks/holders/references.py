"""What an object refers to, and how many strong references there are to it.

The functions here run no code of the program: no property, no ``__getattr__``, no metaclass.
"""

from __future__ import annotations

import contextvars
import opcode
import sys
import threading
import types
import weakref
from _thread import _local as _thread_local
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from ...scopes.base.type_cache import TypeCache
from ...scopes.compiled import referents, variables_of
from ...scopes.framework import FRAMEWORKS, Framework, Part
from ...scopes.identity import Entry, HeldEntry, StrongEntry
from ...scopes.scope import DisposeScope
from ...scopes.tree_walk import LEAF_TYPES, children_found_by_frameworks, instance_dict_of

__all__ = [
    "CLASS",
    "EDGES_PLAIN",
    "HIDDEN_TYPES",
    "IN_EXCEPTION",
    "IN_GRAPH",
    "SKIPPED",
    "SUSPENDED",
    "KnownPart",
    "action_of",
    "awaited_by",
    "bases_of",
    "class_of",
    "framework_of",
    "hide_types",
    "is_container",
    "is_exception",
    "is_module",
    "is_namespace",
    "is_static",
    "is_thread_local",
    "is_weak_keyed",
    "items_of_weak_keyed",
    "named_in",
    "namespace_of",
    "qualified_name_of",
    "references_to",
    "referents_of",
    "runs_module",
]


class KnownPart(NamedTuple):
    """The framework that knows a type, and what the instances of the type are."""

    framework: Framework
    part: Part


_KNOWN_PARTS: Final[TypeCache[KnownPart | None]] = TypeCache()
"""A cache of `framework_of`."""

_ACTIONS: Final[TypeCache[int]] = TypeCache()
"""A cache of `action_of`."""


def framework_of(cls: Any) -> KnownPart | None:
    """Return the framework that knows a type, and what its instances are; None where none does."""
    try:
        return _KNOWN_PARTS.known[id(cls)]
    except KeyError:
        found: KnownPart | None = None
        for framework in FRAMEWORKS.with_own("part_of"):
            part = framework.part_of(cls)
            if part is not None:
                found = KnownPart(framework, part)
                break
        _KNOWN_PARTS.remember(cls, found)
        return found


def _forget_types() -> None:
    _KNOWN_PARTS.clear()
    _ACTIONS.clear()


FRAMEWORKS.after_install(_forget_types)


# What an object refers to, without running any code of the program: the edges along which holders
# are searched.


HIDDEN_TYPES: Final[set[type]] = {DisposeScope, Entry, HeldEntry, StrongEntry}
"""Types of this library that refer to resources and are no holders of them. Only `hide_types` adds
to it.
"""


def hide_types(*types: type) -> None:
    """Add types of this library whose instances are never reported as holders."""
    HIDDEN_TYPES.update(types)


GENERATORS: Final = frozenset({types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType})

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_OPTIMIZED: Final = 0x1  # inspect.CO_OPTIMIZED: the locals of the code live in slots, not in a dict
# Attributes of classes and modules, read past metaclasses and subclasses, whose own would run code.
_Getter = Callable[[object], Any]
_qualname: Final[_Getter] = vars(type)["__qualname__"].__get__
_flags: Final[_Getter] = vars(type)["__flags__"].__get__
_mro: Final[_Getter] = vars(type)["__mro__"].__get__
_class_namespace: Final[_Getter] = vars(type)["__dict__"].__get__
_module_namespace: Final[_Getter] = vars(types.ModuleType)["__dict__"].__get__


_CONTAINERS: Final = (tuple, list, dict, set, frozenset, deque)

# What a search does with the instances of a type. The first four are also the stages of a search in
# their order, and indexes of its queues: see `search`.

EDGES_PLAIN: Final = 0
"""Goes through them like through any object."""

SUSPENDED: Final = 1
"""Goes through them later: a suspended generator or coroutine."""

IN_EXCEPTION: Final = 2
"""Goes through them still later: an exception or a traceback."""

IN_GRAPH: Final = 3
"""Goes through them last: a node of an autograd graph."""

SKIPPED: Final = -1
"""Never goes through them."""

CLASS: Final = -2
"""Goes through a class of a library only when it searches libraries."""


def action_of(cls: type) -> int:
    """Return what a search does with the instances of a type.

    Returns
    -------
    int
        `SKIPPED`, `CLASS`, `SUSPENDED`, `IN_EXCEPTION`, `IN_GRAPH`, or else `EDGES_PLAIN`.
    """
    try:
        return _ACTIONS.known[id(cls)]
    except KeyError:
        action = _judge(cls)
        _ACTIONS.remember(cls, action)
        return action


def _judge(cls: type) -> int:
    if cls in _WITHOUT_REFERENTS or cls in HIDDEN_TYPES or issubclass(cls, types.ModuleType):
        return SKIPPED
    if issubclass(cls, type):
        return CLASS
    if issubclass(cls, (BaseException, types.TracebackType)):
        return IN_EXCEPTION
    if cls in GENERATORS:
        return SUSPENDED
    known = framework_of(cls)
    return IN_GRAPH if known is not None and known.part == "node" else EDGES_PLAIN


def referents_of(node: Any) -> list[object]:
    """Return the objects that an object refers to directly and can be called a holder of.

    Left out is what functions and frames need to run: globals, builtins, callers. Empty for a
    module and its namespace: its variables are roots.
    """
    cls = class_of(node)
    if cls in _WITHOUT_REFERENTS:
        return []
    referents_of_instance = _REFERENTS_BY_TYPE.get(cls)
    if referents_of_instance is not None:
        return referents_of_instance(node)
    if is_module(node) or cls in HIDDEN_TYPES:
        return []
    if issubclass(cls, type):
        return [*namespace_of(node).values(), *bases_of(node)[1:]]
    if issubclass(cls, _thread_local):
        return _of_thread_local(node)
    if is_weak_keyed(node):
        return _of_weak_keyed(node)
    found = referents(node)
    known = framework_of(cls)
    if known is not None:
        found += [child for _, child in known.framework.references(node)]
    if not found or known is not None:
        # The garbage collector does not see into arrays of objects; a framework does.
        children = children_found_by_frameworks(node)
        if children is not None:
            return [*found, *(child for _, child in children)]
    return found


def namespace_of(thing: Any) -> dict[str, object]:
    """Return the names of a class or module, read past its metaclass and any ``__getattr__``."""
    namespace = _class_namespace(thing) if issubclass(type(thing), type) else _module_namespace(thing)
    return dict(namespace) if namespace else {}


def named_in(thing: Any, name: str) -> object:
    """Return what a class or module has by one name in its own namespace, or None.

    It reads what `namespace_of` copies.
    """
    namespace: Any = _class_namespace(thing) if issubclass(type(thing), type) else _module_namespace(thing)
    return namespace.get(name) if namespace else None


def is_module(thing: object) -> bool:
    """Return whether an object is a module, by its real type."""
    return issubclass(type(thing), types.ModuleType)


def runs_module(frame: types.FrameType) -> bool:
    """Return whether the locals of a frame are the globals of a module that can be found."""
    return not frame.f_code.co_flags & _OPTIMIZED and _is_of_module(frame.f_globals)


def _is_of_module(names: dict[str, Any]) -> bool:
    """Return whether a dict is the namespace of a module in `sys.modules`."""
    name: object = names.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return module is not None and is_module(module) and _module_namespace(module) is names


def is_namespace(thing: Any) -> bool:
    """Return whether an object is the globals of some code."""
    return type(thing) is dict and "__builtins__" in thing


def is_container(thing: object) -> bool:
    """Return whether an object is there to hold others.

    Such as a list, an instance of a dataclass, or whatever a framework has `children` for.
    """
    cls = type(thing)
    if cls in HIDDEN_TYPES or is_namespace(thing):
        return False
    if issubclass(cls, _CONTAINERS) or any(
        "__dataclass_fields__" in names or "__attrs_attrs__" in names for names in map(namespace_of, classes_of(thing))
    ):
        return True
    return any(framework.children(thing) is not None for framework in FRAMEWORKS.with_own("children"))


def classes_of(node: object) -> tuple[type, ...]:
    """Return the classes of an object, read past its metaclass."""
    return bases_of(type(node))


def bases_of(cls: type) -> tuple[type, ...]:
    """Return a class and its bases, read past its metaclass.

    A type that is not ready, or whose class statement still runs, has no bases yet.
    """
    bases: tuple[type, ...] | None = _mro(cls)
    return (cls,) if bases is None else bases


def class_of(thing: object) -> type:
    """Return the real class of an object, whatever its ``__class__`` is."""
    return type(thing)


def qualified_name_of(cls: type) -> str:
    """Return the qualified name of a class, read past its metaclass."""
    return cast("str", _qualname(cls))


def is_static(cls: type) -> bool:
    """Return whether a class was made by something other than a class statement or its like."""
    return not _flags(cls) & _HEAP_TYPE


def is_thread_local(node: object) -> bool:
    """Return whether an object holds something for each thread."""
    return issubclass(type(node), _thread_local)


def is_weak_keyed(node: object) -> bool:
    """Return whether an object is a dictionary whose values live as long as their keys."""
    # Not with `issubclass`: for an abstract class it asks the metaclass, which keeps a reference to
    # each class that it is asked about, and crashes at types that CPython 3.11 has not readied.
    return type.__subclasscheck__(weakref.WeakKeyDictionary, type(node))


def items_of_weak_keyed(node: object) -> list[tuple[object, object]]:
    """Return the keys and values of a `weakref.WeakKeyDictionary`; None for a key that is gone."""
    items = (instance_dict_of(node) or {}).get("data")
    if type(items) is not dict:
        return []
    copied = cast("dict[Any, object]", items).copy()
    return [(key(), value) for key, value in copied.items() if issubclass(type(key), weakref.ref)]


def is_exception(node: object) -> bool:
    """Return whether an object is an exception, by its real type."""
    return issubclass(type(node), BaseException)


if sys.version_info >= (3, 12):

    def awaited_by(thing: Any) -> Any:
        """Return what a suspended generator or coroutine awaits or yields from, or ``None``.

        One that runs is never asked. On Python 3.12 it answers with whatever its stack has, an
        object that may be gone. No code runs between the two attributes that are read here.
        """
        cls = class_of(thing)
        if cls is types.CoroutineType:
            return thing.cr_await if thing.cr_suspended else None
        if cls is types.GeneratorType:
            return thing.gi_yieldfrom if thing.gi_suspended else None
        if cls is types.AsyncGeneratorType:
            return thing.ag_await if thing.ag_suspended else None
        return None

else:
    _YIELD: Final = opcode.opmap["YIELD_VALUE"]
    _RESUME: Final = opcode.opmap["RESUME"]
    _AFTER_YIELD_FROM: Final = 2
    """The arguments of ``RESUME`` from here on follow ``yield from`` and ``await``."""

    def awaited_by(thing: Any) -> Any:
        """Return what a suspended generator or coroutine awaits or yields from, or ``None``.

        None is asked for it. On Python 3.11 one that runs answers with whatever its stack has, and
        one that is suspended too while an exception is thrown into what it awaits: an object that
        may be gone. What it refers to is known in each state, the top of its stack last.
        """
        prefix = _FRAMES_OF.get(class_of(thing))
        if prefix is None:
            return None
        found = referents(thing)
        frame = getattr(thing, prefix)
        if frame is None or frame.f_lasti < 0:
            return None
        code, at = frame.f_code.co_code, frame.f_lasti
        if code[at] != _YIELD or code[at + 2] != _RESUME or code[at + 3] < _AFTER_YIELD_FROM:
            return None
        if found and is_exception(found[-1]):
            # The one that is being handled there.
            found.pop()
        return found[-1] if found else None

    _FRAMES_OF: Final[dict[type, str]] = {
        types.CoroutineType: "cr_frame",
        types.GeneratorType: "gi_frame",
        types.AsyncGeneratorType: "ag_frame",
    }


def _of_function(node: types.FunctionType) -> list[object]:
    # The globals of a module that is not in `sys.modules`, such as a plugin that was executed from
    # its file, are held by its functions.
    variables = node.__globals__
    left_out = (variables if _is_of_module(variables) else None, getattr(node, "__builtins__", None))
    return [child for child in referents(node) if not any(child is thing for thing in left_out)]


def _of_dict(node: dict[Any, object]) -> list[object]:
    return [] if _is_of_module(node) else referents(node)


def _of_frame(node: types.FrameType) -> list[object]:
    found: list[object] = [] if runs_module(node) else list(variables_of(node).values())
    # A frame whose function has returned, such as one of a kept traceback, keeps the frames of its
    # callers. Frames that still run are roots, and are left out here.
    caller = node.f_back
    if caller is not None and not _runs(caller):
        found.append(caller)
    return found


def _runs(frame: types.FrameType) -> bool:
    """Return whether a frame is on the stack of a thread."""
    frames = sys._current_frames()
    # Leave out this frame: a variable of it that refers to it would be a cycle, which only the
    # garbage collector frees.
    above: types.FrameType | None = frames.pop(threading.get_ident()).f_back
    for innermost in (above, *frames.values()):
        above = innermost
        while above is not None:
            if above is frame:
                return True
            above = above.f_back
    return False


def _of_thread_local(node: object) -> list[object]:
    # It has a dict, whose values are the dicts of its attributes for each thread.
    found = referents(node)
    for child in found.copy():
        if type(child) is dict:
            found += [held for held in cast("dict[object, object]", child).values() if type(held) is dict]
    return found


def _of_weak_keyed(node: object) -> list[object]:
    # Its keys are left out: they are referred to weakly.
    attributes = instance_dict_of(node)
    items = None if attributes is None else attributes.get("data")
    others = [child for child in referents(node) if child is not attributes and child is not items]
    named = [] if attributes is None else [value for name, value in attributes.copy().items() if name != "data"]
    return [*others, *named, *(value for _, value in items_of_weak_keyed(node))]


def _of_traceback(node: types.TracebackType) -> list[object]:
    return [node.tb_frame, node.tb_next]


# Leaves of a tree walk that refer to objects all the same, such as a class, a frame, or a bound
# method of a compiled type.
_LEAVES_WITH_REFERENTS: Final = {
    type,
    memoryview,
    slice,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.FrameType,
    types.TracebackType,
}
_WITHOUT_REFERENTS: Final = LEAF_TYPES - _LEAVES_WITH_REFERENTS
_REFERENTS_BY_TYPE: Final[dict[type, Callable[[Any], list[object]]]] = {
    dict: _of_dict,
    contextvars.Context: lambda node: [*node, *node.values()],
    types.FunctionType: _of_function,
    types.FrameType: _of_frame,
    types.TracebackType: _of_traceback,
}

# Counting the strong references to a resource.


def references_to(entry: Entry) -> int:
    """Return how many strong references there are to a resource, without those of this library."""
    return max(0, _count(entry) - _OWN_REFERENCES - (isinstance(entry, HeldEntry) and entry.is_held))


def _count(entry: Entry) -> int:
    resource = entry()
    return 0 if resource is None else sys.getrefcount(resource)


class _Probe:
    __slots__ = ("__weakref__",)


def _measure_own_references() -> int:
    # How many references of its caller `sys.getrefcount` counts depends on the interpreter.
    probe = _Probe()
    held = [probe]
    entry = Entry(probe)
    del probe
    return _count(entry) - len(held)


_OWN_REFERENCES: Final = _measure_own_references()
