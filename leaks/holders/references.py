"""What an object refers to, and how many strong references it has, without running the program's code."""

from __future__ import annotations

import gc
import sys
import types
from _thread import _local as _thread_local
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from ...scopes.identity import Entry, StrongEntry
from ...scopes.scope import DisposeScope
from ...scopes.tree_walk import LEAF_TYPES, children_found_by_frameworks

__all__ = [
    "ACTIONS",
    "CLASS",
    "EDGES_PLAIN",
    "FRAMEWORKS",
    "GENERATORS",
    "HIDDEN_TYPES",
    "IN_EXCEPTION",
    "IN_GRAPH",
    "SKIPPED",
    "SUSPENDED",
    "Framework",
    "Memory",
    "Part",
    "action_of",
    "add_framework",
    "attributes_of",
    "class_of",
    "framework_of",
    "instance_dict_of",
    "is_container",
    "is_exception",
    "is_module",
    "is_namespace",
    "is_static",
    "is_thread_local",
    "locals_of",
    "mro_of",
    "named_in",
    "namespace_of",
    "qualified_name_of",
    "references_to",
    "referents_of",
    "runs_module",
]

# The seam to frameworks whose objects hold more than the garbage collector sees: tensors, and nodes
# of graphs.


Part = Literal["tensor", "node"]
"""A tensor, or a node of an autograd graph."""


class Memory(NamedTuple):
    """A storage that an object keeps.

    Attributes
    ----------
    step : str
        How code reaches it from the object; empty for a tensor's own.
    identity : hashable
        Its identity, as `Kind.storages` tells it.
    used_nbytes : int
        The bytes of it that the object uses.
    """

    step: str
    identity: Hashable
    used_nbytes: int


class Framework(Protocol):
    """What the floor above implements.

    No code of the program may be run, and nothing is changed.
    """

    def part(self, cls: type, /) -> Part | None:
        """What the instances of a type are; None where the framework has nothing to tell of them."""
        ...

    def quiet(self) -> AbstractContextManager[object]:
        """What the calls below are made inside of: keeps the framework from telling others of them."""
        ...

    def edges(self, thing: Any, /) -> Sequence[tuple[str, object]]:
        """What an object holds, each with how code reaches it, as far as the garbage collector does not see it."""
        ...

    def memory(self, thing: Any, /) -> Sequence[Memory]:
        """The storages that an object keeps."""
        ...

    def alone(self, tensor: Any, /) -> Hashable | None:
        """The identity of the one storage of a tensor that refers to nothing else; None for others, and in doubt."""
        ...

    def passes(self, tensor: Any, /) -> int:
        """In how many passes of a loop the nodes of a tensor's graph were made, where that is known; else 0."""
        ...

    def walked(self, nodes: dict[int, Any], edges: dict[int, list[int]], /) -> None:
        """Nodes of graphs were walked: all of them by ``id``, and for each the ``id`` of those that it refers to."""


FRAMEWORKS: Final[list[Framework]] = []
"""Those that were taught."""

ACTIONS: Final[dict[type, int]] = {}
"""What a search does with the instances of each type, as far as it was asked: see `references.action_of`."""

_OF_TYPE: Final[dict[type, tuple[Framework, Part] | None]] = {}
_PARTS_REMEMBERED: Final = 4096


def framework_of(cls: Any) -> tuple[Framework, Part] | None:
    """The framework that knows a type, and what its instances are."""
    try:
        return _OF_TYPE[cls]
    except KeyError:
        found: tuple[Framework, Part] | None = None
        for framework in FRAMEWORKS:
            part = framework.part(cls)
            if part is not None:
                found = framework, part
                break
        if len(_OF_TYPE) >= _PARTS_REMEMBERED:
            _OF_TYPE.clear()
        _OF_TYPE[cls] = found
        return found


def add_framework(framework: Framework) -> None:
    """Learn a framework."""
    FRAMEWORKS.append(framework)
    _OF_TYPE.clear()
    ACTIONS.clear()


# What an object refers to, without running any code of the program: the edges along which holders
# are searched.


HIDDEN_TYPES: Final[set[type]] = {DisposeScope, Entry, StrongEntry}
"""Types of this library that know resources: what they refer to is never told as a holder."""

GENERATORS: Final = frozenset({types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType})

_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_OPTIMIZED: Final = 0x1  # inspect.CO_OPTIMIZED: the locals of the code live in slots, not in a dict
_Getter = Callable[[object], Any]
_qualname: Final[_Getter] = vars(type)["__qualname__"].__get__
_flags: Final[_Getter] = vars(type)["__flags__"].__get__
_mro: Final[_Getter] = vars(type)["__mro__"].__get__
_class_namespace: Final[_Getter] = vars(type)["__dict__"].__get__
_module_namespace: Final[_Getter] = vars(types.ModuleType)["__dict__"].__get__


_CONTAINERS: Final = (tuple, list, dict, set, frozenset, deque)

EDGES_PLAIN: Final = 0
SUSPENDED: Final = 1
IN_EXCEPTION: Final = 2
IN_GRAPH: Final = 3
SKIPPED: Final = -1
CLASS: Final = -2

_REMEMBERED: Final = 10_000


def action_of(cls: type) -> int:
    """What a search does with the instances of a type.

    Returns
    -------
    int
        `SKIPPED` for what leads nowhere, `CLASS` for a class, or what it means to come through an
        instance: `SUSPENDED`, `IN_EXCEPTION`, `IN_GRAPH`, or nothing in particular (`EDGES_PLAIN`).
    """
    try:
        return ACTIONS[cls]
    except KeyError:
        if len(ACTIONS) >= _REMEMBERED:
            ACTIONS.clear()
        action = ACTIONS[cls] = _judge(cls)
        return action


def _judge(cls: type) -> int:
    if cls in _WITHOUT or cls in HIDDEN_TYPES or issubclass(cls, types.ModuleType):
        return SKIPPED
    if issubclass(cls, type):
        return CLASS
    if issubclass(cls, (BaseException, types.TracebackType)):
        return IN_EXCEPTION
    if cls in GENERATORS:
        return SUSPENDED
    known = framework_of(cls)
    return IN_GRAPH if known is not None and known[1] == "node" else EDGES_PLAIN


def referents_of(node: Any) -> list[object]:
    """The objects that one refers to directly and for which it can be called a holder.

    Not what functions and frames refer to for their own working: globals, builtins, callers.
    Modules have none here: they are roots, each on its own.
    """
    cls = class_of(node)
    if cls in _WITHOUT:
        return []
    special = _SPECIAL.get(cls)
    if special is not None:
        return special(node)
    if is_module(node) or cls in HIDDEN_TYPES:
        return []
    if issubclass(cls, type):
        return list(namespace_of(node).values())
    if issubclass(cls, _thread_local):
        return _of_thread_local(node)
    found = gc.get_referents(node)
    known = framework_of(cls)
    if known is not None:
        found += [child for _, child in known[0].edges(node)]
    if not found or known is not None:
        # Arrays of objects are not seen by the garbage collector.
        children = children_found_by_frameworks(node)
        if children is not None:
            return [*found, *(child for _, child in children)]
    return found


def locals_of(frame: types.FrameType) -> dict[str, object]:
    """The local variables of a frame by name, without lengthening their lives.

    Before Python 3.13, ``f_locals`` of a function's frame is a dict that the frame keeps: it would
    hold the values after the function has dropped them. Here it is emptied again, unless the
    program holds it too (having called ``locals()``).
    """
    variables = frame.f_locals
    if not frame.f_code.co_flags & _OPTIMIZED:
        return dict(variables)
    copied = dict(variables)
    # Two references are ours (the name and the argument), one is the frame's.
    if sys.version_info < (3, 13) and sys.getrefcount(variables) <= 3:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)
    return copied


def namespace_of(thing: Any) -> dict[str, object]:
    """The names of a class or module, read past its metaclass and any ``__getattr__``."""
    namespace = _class_namespace(thing) if issubclass(type(thing), type) else _module_namespace(thing)
    return dict(namespace) if namespace else {}


def named_in(thing: Any, name: str) -> object:
    """What a class or module has by one name in its own namespace, or None: `namespace_of` without a copy."""
    namespace: Any = _class_namespace(thing) if issubclass(type(thing), type) else _module_namespace(thing)
    return namespace.get(name) if namespace else None


def is_module(thing: object) -> bool:
    """Whether an object is a module, by its real type."""
    return issubclass(type(thing), types.ModuleType)


def runs_module(frame: types.FrameType) -> bool:
    """Whether the locals of a frame are the globals of a module that can be found."""
    if frame.f_code.co_flags & _OPTIMIZED:
        return False
    name: object = frame.f_globals.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return module is not None and is_module(module) and _module_namespace(module) is frame.f_globals


def attributes_of(node: object) -> list[tuple[str, object]]:
    """What an instance holds in its ``__dict__`` and its slots, read past properties and ``__getattr__``."""
    found: list[tuple[str, object]] = []
    attributes = instance_dict_of(node)
    if attributes is not None:
        found.extend((name, value) for name, value in attributes.copy().items() if type(name) is str)
    for base in mro_of(node):
        for name, member in namespace_of(base).items():
            if type(member) is types.MemberDescriptorType and name != "__dict__":
                # An empty slot raises AttributeError, a member of the interpreter's own may raise
                # others.
                with suppress(AttributeError, TypeError, ValueError):
                    found.append((name, member.__get__(node)))
    return found


def instance_dict_of(node: object) -> dict[str, object] | None:
    """The ``__dict__`` of an instance, read past any property of that name."""
    if is_thread_local(node):
        # It makes one for this thread where there is none, and may call the program's __init__ for
        # it.
        return None
    for base in mro_of(node):
        descriptor = named_in(base, "__dict__")
        if type(descriptor) in _DESCRIPTORS and base is not type:
            attributes = cast("Any", descriptor).__get__(node)
            return cast("dict[str, object]", attributes) if type(attributes) is dict else None
    return None


def is_namespace(thing: Any) -> bool:
    """Whether an object is the globals of some code."""
    return type(thing) is dict and "__builtins__" in thing


def is_container(thing: object) -> bool:
    """Whether an object is there to hold others: a list, a dict, a dataclass."""
    cls = type(thing)
    if cls in HIDDEN_TYPES or is_namespace(thing):
        return False
    return issubclass(cls, _CONTAINERS) or any(
        "__dataclass_fields__" in names or "__attrs_attrs__" in names for names in map(namespace_of, mro_of(thing))
    )


def mro_of(node: object) -> tuple[type, ...]:
    """The classes of an object, read past its metaclass."""
    return cast("tuple[type, ...]", _mro(type(node)))


def class_of(thing: object) -> type:
    """The real class of an object, whatever it says of itself."""
    return type(thing)


def qualified_name_of(cls: type) -> str:
    """The qualified name of a class, read past its metaclass."""
    return cast("str", _qualname(cls))


def is_static(cls: type) -> bool:
    """Whether a class was not made by running a class statement, or what is like it."""
    return not _flags(cls) & _HEAP_TYPE


def is_thread_local(node: object) -> bool:
    """Whether an object holds something for each thread."""
    return issubclass(type(node), _thread_local)


def is_exception(node: object) -> bool:
    """Whether an object is an exception, by its real type."""
    return issubclass(type(node), BaseException)


def _of_function(node: types.FunctionType) -> list[object]:
    own = (node.__globals__, getattr(node, "__builtins__", None))
    return [child for child in gc.get_referents(node) if not any(child is thing for thing in own)]


def _of_frame(node: types.FrameType) -> list[object]:
    return [] if runs_module(node) else list(locals_of(node).values())


def _of_thread_local(node: object) -> list[object]:
    # What it holds for each thread: dicts, behind the references of a dict of its own.
    found = gc.get_referents(node)
    for child in found.copy():
        if type(child) is dict:
            found += [held for held in cast("dict[object, object]", child).values() if type(held) is dict]
    return found


def _of_traceback(node: types.TracebackType) -> list[object]:
    return [node.tb_frame, node.tb_next]


# Leaves of a tree, some of which hold something all the same: a class, a frame, a method of the
# interpreter's own.
_HOLDING: Final = {
    type,
    memoryview,
    slice,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.FrameType,
    types.TracebackType,
}
_WITHOUT: Final = frozenset(LEAF_TYPES) - _HOLDING
_SPECIAL: Final[dict[type, Callable[[Any], list[object]]]] = {
    types.FunctionType: _of_function,
    types.FrameType: _of_frame,
    types.TracebackType: _of_traceback,
}

# Counting the strong references to a resource.


def references_to(entry: Entry) -> int:
    """How many strong references there are to a resource."""
    return max(0, _count(entry) - _OWN_REFERENCES - (type(entry) is StrongEntry))


def _count(entry: Entry) -> int:
    resource = entry()
    return 0 if resource is None else sys.getrefcount(resource)


class _Probe:
    __slots__ = ("__weakref__",)


def _measure_own_references() -> int:
    # How many of the references that getrefcount sees are its caller's depends on the interpreter:
    # it is measured.
    probe = _Probe()
    held = [probe]
    entry = Entry(probe)
    del probe
    return _count(entry) - len(held)


_OWN_REFERENCES: Final = _measure_own_references()
