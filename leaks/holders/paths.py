"""Show a chain of objects, each of which refers to the next, as the code that reaches the last.

Here are also `Ways`: the chains by which a search reached what it found.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise
from operator import indexOf
from typing import Any, Final, cast, final

from ...scopes.base.sites import line_of_frame, shown
from ...scopes.compiled import variables_of
from ...scopes.framework import FRAMEWORKS, Framework
from ...scopes.identity import Entry
from ...scopes.tree_walk import attributes_of, children_found_by_frameworks, instance_dict_of
from ..births.log import Subject
from .origins import Chain, Holder, Origin
from .references import (
    IN_GRAPH,
    action_of,
    awaited_by,
    bases_of,
    class_of,
    framework_of,
    is_exception,
    is_module,
    is_thread_local,
    is_weak_keyed,
    items_of_weak_keyed,
    named_in,
    namespace_of,
    qualified_name_of,
)

__all__ = [
    "ALL_WAYS_KEPT",
    "WAYS_KEPT",
    "Link",
    "Ways",
    "chain_as_code",
    "display_name_of",
    "holder_of",
    "steps",
]

_KEY_CHARACTERS: Final = 40
"""The text of a key is cut after so many characters, so that a chain stays on a line."""

_CALLS: Final = re.compile(r"( frame [^:]*:\d+ [^ ]*\.f_back)(?:(?: …)* +frame [^:]*:\d+ [^ ]*\.f_back)+(?: …)*")
"""Several frames in a row, each the caller of the one before. Only the first one is shown."""

_STEPS_SHOWN: Final = 40
"""A chain with more objects is shown by its two ends."""

_STEPS_AT_ENDS: Final = 15
"""So many objects of a long chain are shown at each end."""

_NODES_SHOWN: Final = 6
"""A way through more nodes of an autograd graph is shown by where it enters and where it ends."""

_PLAIN_KEYS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of keys that are shown by their ``repr``, which runs no code of the program."""

_GENERATORS: Final[dict[type, str]] = {
    types.GeneratorType: "gi",
    types.CoroutineType: "cr",
    types.AsyncGeneratorType: "ag",
}
"""The prefix of the attributes of each type, such as ``gi_frame``."""

_FUTURE_PARTS: Final = {"_result": ".result()", "_exception": ".exception()", "_coro": ".get_coro()"}
"""For each attribute of compiled futures and tasks, how code reaches it."""

_EXCEPTION_PARTS: Final = ("__traceback__", "__cause__", "__context__", "args")


def chain_as_code(chain: list[object], start: str) -> str:
    """Return the chain as code.

    Parameters
    ----------
    chain : list
        Objects, each of which refers to the next.
    start : str
        How the first one is written.
    """
    return start + _code_of(_shown_parts(chain))


def holder_of(origin: Origin, chain: list[object], step: str = "", remark: str = "") -> Holder:
    """Return the chain as code, with what is known of it.

    Parameters
    ----------
    origin : Origin
        Where it begins.
    chain : list
        Objects, each of which refers to the next.
    step, remark : str, optional
        The text of a last step, and what follows the code.
    """
    parts = _shown_parts(chain)
    code = _code_of(parts) + step
    pairs = [pair for part in parts for pair in pairwise(part)]
    known = Chain(
        origin,
        # Only a step to an item is written with brackets.
        has_items="[" in code,
        is_of_a_thread=any(is_thread_local(parent) for parent, _ in pairs),
        is_of_a_key=any(is_weak_keyed(parent) and _item(items_of_weak_keyed(parent), child) for parent, child in pairs),
        is_in_traceback=any(is_exception(parent) and type(child) is types.TracebackType for parent, child in pairs),
        ends_at_self_of_init=not step and _ends_at_self_of_init(origin, chain),
    )
    return Holder(f"{origin.text}{code}{remark}", known)


def _ends_at_self_of_init(origin: Origin, chain: list[object]) -> bool:
    if len(chain) == 1:
        is_variable = origin.kind == "frame" and not origin.thread and origin.variable == "self"
        return is_variable and origin.owner.endswith(".__init__")
    frame = chain[-2]
    if type(frame) is not types.FrameType or not frame.f_code.co_qualname.endswith(".__init__"):
        return False
    return variables_of(frame).get("self") is chain[-1]


def _shown_parts(chain: list[object]) -> list[list[object]]:
    """Return the parts of a chain that are shown: all of it, or some parts of a long one.

    Each part but the first begins with one object more, which tells what its first step is.
    """
    first, last = _nodes_in(chain)
    if last - first > _NODES_SHOWN:
        # The chain leads through a graph: show where it enters the graph, and where it ends.
        return [*_ends_of(chain[: first + 2]), chain[last - 3 :]]
    return _ends_of(chain)


def _ends_of(chain: list[object]) -> list[list[object]]:
    return [chain] if len(chain) <= _STEPS_SHOWN else [chain[:_STEPS_AT_ENDS], chain[-_STEPS_AT_ENDS - 1 :]]


def _code_of(parts: list[list[object]]) -> str:
    texts = ["".join(steps(part)[number > 0 :]) for number, part in enumerate(parts)]
    return _CALLS.sub(r"\1 …", " … ".join(texts))


def _nodes_in(chain: list[object]) -> tuple[int, int]:
    """Return the indexes of the first and last node in the last run of graph nodes of a chain.

    Twice 0 where it has none.
    """
    last = len(chain) - 1
    while last > 0 and not _is_node(chain[last]):
        last -= 1
    first = last
    while first > 0 and _is_node(chain[first - 1]):
        first -= 1
    return first, last


def _is_node(thing: object) -> bool:
    known = framework_of(class_of(thing))
    return known is not None and known.part == "node"


def steps(chain: list[object]) -> list[str]:
    """Return the text of each step of a chain; empty for a step that code does not show."""
    return [
        _step(chain[index - 1] if index else None, chain[index], chain[index + 1]) for index in range(len(chain) - 1)
    ]


def display_name_of(thing: Any) -> str:
    """Return the name of an object in a text: its type, or the name of a function."""
    if type(thing) is types.FunctionType:
        return f"{thing.__qualname__}()"
    if issubclass(type(thing), type):
        return f"class {qualified_name_of(thing)}"
    if type(thing) in _GENERATORS:
        return f"{type(thing).__name__} {thing.__qualname__}()"
    return qualified_name_of(class_of(thing))


def _step(before: object, parent: Any, child: object) -> str:
    """Return the text of a step from an object to a child that it refers to; or ``""``.

    Empty for a step that code does not show, such as that into the ``__dict__`` of an instance. The
    object before `parent` in the chain tells which steps those are.
    """
    cls = class_of(parent)
    if cls is dict:
        if before is not None and (is_thread_local(before) or _is_instance_dict(before, parent)):
            return _attribute(parent, child)
        return _item(parent.copy().items(), child)
    step = _STEPS.get(cls)
    if step is not None:
        return step(before, parent, child)
    if is_thread_local(parent):
        return " (of a thread)"
    if is_weak_keyed(parent):
        found = _item(items_of_weak_keyed(parent), child)
        if found:
            return f"{found} (as long as this key lives)"
    known = framework_of(cls)
    if known is not None:
        parts: list[tuple[str, object]] = [*known.framework.references(parent)]
        parts += children_found_by_frameworks(parent) or ()
        for text, value in parts:
            if value is child:
                return text
    if cls in _GENERATORS:
        return _generator_step(parent, child)
    if issubclass(cls, type):
        names = [f".{name}" for name, value in namespace_of(parent).items() if value is child]
        names += [f".__mro__[{index}]" for index, base in enumerate(bases_of(parent)) if id(base) == id(child)]
        return names[0] if names else ".__class__"
    for base, contents in _CONTAINERS:
        if issubclass(cls, base):
            found = contents(parent, child)
            if found:
                return found
    if _is_instance_dict(parent, child):
        return ""
    if is_exception(parent):
        for name in _EXCEPTION_PARTS:
            if getattr(BaseException, name).__get__(parent) is child:
                return f".{name}"
    for name, value in attributes_of(parent, of_compiled_classes=True):
        if value is child:
            return f".{name}"
    if child is cls:
        return ".__class__"
    if _is_compiled_future(cast("object", cls)):
        for name, text in _FUTURE_PARTS.items():
            # Since Python 3.14 a task inherits these attributes from the class of futures.
            part = named_in(cls, name) or named_in(cls.__base__, name)
            if part is not None and cast("Any", part).__get__(parent) is child:
                return text
    return f".<{qualified_name_of(class_of(child))}>"


def _is_compiled_future(cls: object) -> bool:
    # Compare classes, not names: the name of a class may be a property of its metaclass.
    module = sys.modules.get("_asyncio")
    return (
        module is not None and is_module(module) and any(named_in(module, name) is cls for name in ("Future", "Task"))
    )


def _is_instance_dict(owner: object, attributes: object) -> bool:
    """Return whether an object is the ``__dict__`` of an instance."""
    return attributes is not None and class_of(owner) is not dict and instance_dict_of(owner) is attributes


def _attribute(attributes: dict[object, object], child: object) -> str:
    for name, value in attributes.copy().items():
        if value is child:
            return f".{name}"
    return ".<attribute>"


def _item(items: Iterable[tuple[object, object]], child: object) -> str:
    for key, value in items:
        if value is child:
            return f"[{_key(key)}]"
        if key is child:
            return f".<key {qualified_name_of(class_of(key))}>"
    return ""


def _key(key: object) -> str:
    parts = cast("tuple[object, ...]", key) if class_of(key) is tuple else (key,)
    if all(class_of(part) in _PLAIN_KEYS for part in parts):
        text = repr(key)
        return text if len(text) <= _KEY_CHARACTERS else f"{text[: _KEY_CHARACTERS - 1]}…"
    return f"<{qualified_name_of(class_of(key))}>"


def _index(values: Iterable[object], child: object) -> str:
    try:
        # A million items take 20 ms so, and 60 ms in a loop.
        return f"[{indexOf(map(id, values), id(child))}]"
    except ValueError:
        return ""


# How code reaches a child in each type of container. The methods are those of the base class: a
# subclass may have its own, which would be code of the program.


def _in_tuple(parent: tuple[object, ...], child: object) -> str:
    index = _index(tuple[object, ...].__iter__(parent), child)
    fields = namespace_of(class_of(parent)).get("_fields")
    if index and type(fields) is tuple:
        names = cast("tuple[object, ...]", fields)
        position = int(index[1:-1])
        return f".{names[position]}" if position < len(names) else index
    return index


def _in_list(parent: list[object], child: object) -> str:
    return _index(list[object].copy(parent), child)


def _in_dict(parent: dict[object, object], child: object) -> str:
    return _item(dict[object, object].copy(parent).items(), child)


def _in_set(parent: set[object] | frozenset[object], child: object) -> str:
    copied = set[object]()
    set[object].update(copied, parent)
    return ".<element>" if any(value is child for value in copied) else ""


def _in_deque(parent: deque[object], child: object) -> str:
    return _index(deque[object].copy(parent), child)


_CONTAINERS: Final[tuple[tuple[type, Callable[[Any, object], str]], ...]] = (
    (tuple, _in_tuple),
    (list, _in_list),
    (dict, _in_dict),
    (set, _in_set),
    (frozenset, _in_set),
    (deque, _in_deque),
)


def _function_step(_before: object, parent: types.FunctionType, child: object) -> str:
    if child is parent.__closure__:
        return ""
    for name in ("__defaults__", "__kwdefaults__", "__globals__"):
        if getattr(parent, name) is child:
            return f".{name}"
    return "" if parent.__dict__ is child else ".<function>"


def _tuple_step(before: object, parent: tuple[object, ...], child: object) -> str:
    if type(before) is types.FunctionType and before.__closure__ is parent:
        for name, cell in zip(before.__code__.co_freevars, parent, strict=False):
            if cell is child:
                code = before.__code__
                maker = before.__qualname__.rpartition(".<locals>")[0] or before.__qualname__
                return f", closure of {maker}() at {shown(code.co_filename)}:{code.co_firstlineno}, cell {name!r}"
    return _index(parent, child)


def _frame_text(frame: types.FrameType, line: int, child: object) -> str:
    where = f" frame {shown(frame.f_code.co_filename)}:{line} {frame.f_code.co_qualname}()"
    if child is frame.f_back:
        return f"{where}.f_back"
    value_of_child = child
    if isinstance(child, types.CellType):
        # A variable that functions share. The frame refers to the cell, which may be empty.
        value_of_child = next(iter(gc.get_referents(child)), child)
    for name, value in variables_of(frame).items():
        if value is value_of_child:
            return f"{where}: local {name!r}"
    return where


def _frame_step(before: object, parent: types.FrameType, child: object) -> str:
    line = before.tb_lineno if type(before) is types.TracebackType else line_of_frame(parent)
    return _frame_text(parent, line, child)


def _generator_step(parent: Any, child: object) -> str:
    prefix = _GENERATORS[type(parent)]
    if getattr(parent, f"{prefix}_frame") is child:
        return ""
    if type(child) in _GENERATORS and awaited_by(parent) is child:
        return ".gi_yieldfrom" if prefix == "gi" else f".{prefix}_await"
    frame = getattr(parent, f"{prefix}_frame")
    if frame is None:
        return ".<result>"
    return f", suspended{_frame_text(frame, line_of_frame(frame), child)}"


def _method_step(_before: object, parent: types.MethodType, child: object) -> str:
    return ".__self__" if parent.__self__ is child else ".__func__"


def _partial_step(_before: object, parent: functools.partial[object], child: object) -> str:
    return next((f".{name}" for name in ("func", "args", "keywords") if getattr(parent, name) is child), "")


def _cached_step(_before: object, parent: Any, child: object) -> str:
    return ".__wrapped__" if parent.__dict__.get("__wrapped__") is child else ".<cached>"


def _context_step(_before: object, parent: contextvars.Context, child: object) -> str:
    return next((f"[<ContextVar {variable.name!r}>]" for variable, value in parent.items() if value is child), "")


def _no_step(_before: object, _parent: object, _child: object) -> str:
    return ""


# The type of the object that stands between a memoryview and what it shows; it has no public name.
_MANAGED_BUFFER: Final = class_of(gc.get_referents(memoryview(b""))[0])
# The type of a function with a cache of functools.
_CACHED: Final = type(functools.lru_cache(_no_step))
_STEPS: Final[dict[type, Callable[[Any, Any, Any], str]]] = {
    types.FunctionType: _function_step,
    types.CellType: _no_step,
    memoryview: _no_step,
    _MANAGED_BUFFER: lambda _before, _parent, _child: ".obj",
    types.TracebackType: _no_step,
    types.FrameType: _frame_step,
    types.MethodType: _method_step,
    types.BuiltinMethodType: lambda _before, _parent, _child: ".__self__",
    functools.partial: _partial_step,
    _CACHED: _cached_step,
    contextvars.Context: _context_step,
    tuple: _tuple_step,
}


def cache_on(chain: Sequence[object], start: str) -> str:
    """Return in words which call empties a cache that a chain leads through; ``""`` without one.

    Parameters
    ----------
    chain : sequence of object
        Objects, each of which refers to the next.
    start : str
        How the first one is written.
    """
    for index, thing in enumerate(chain[:-1]):
        if class_of(thing) is _CACHED:
            code = _code_of_cached(thing, chain[:index])
            if code is None:
                return " (a functools cache: keep a reference to the cached function, whose cache_clear() empties it)"
            return f" (a functools cache: {code}.cache_clear() empties it)"
    for framework in FRAMEWORKS.with_own("caches"):
        for cache in framework.caches:
            if re.match(cache.start, start):
                return f" ({cache.name}: {cache.empty} empties it)"
    return ""


_WRAPPERS_AT_MOST: Final = 8
"""A function with a cache is looked for behind so many ``__wrapped__`` at most."""


def _code_of_cached(cached: Any, before: Sequence[object]) -> str | None:
    """Return the code that reaches a function with a cache, given the chain to it; None if unknown.

    Its name may be that of a function around it, or of a function without the cache.
    """
    qualified_name = cached.__dict__.get("__qualname__")
    if type(qualified_name) is not str:
        return None
    code = qualified_name.rpartition("<locals>.")[2]
    reached: Any = sys.modules.get(cached.__dict__.get("__module__"))
    if code != qualified_name:
        # The name of a variable of a function cannot be looked up. Another function that holds it
        # under another name is one around it.
        around: Any = next((each for each in before[-3:] if class_of(each) is types.FunctionType), cached)
        variables = () if around is cached else zip(around.__code__.co_freevars, around.__closure__ or (), strict=False)
        reached = cached if any(name == code and cell is before[-1] for name, cell in variables) else around
    else:
        for name in code.split("."):
            reached = named_in(reached, name) if is_module(reached) or issubclass(class_of(reached), type) else None
    if class_of(reached) in (classmethod, staticmethod):
        reached = reached.__func__
    for _ in range(_WRAPPERS_AT_MOST):
        if reached is cached:
            return code
        if class_of(reached) is not types.FunctionType:
            break
        reached = reached.__dict__.get("__wrapped__")
        code += ".__wrapped__"
    return None


# The ways by which a search reached what it found.


WAYS_KEPT: Final = 3
"""So many ways to one subject a search keeps at most. Reports show three chains."""

ALL_WAYS_KEPT: Final = 8
"""So many ways to one subject a search for all holders of few subjects keeps at most."""

Link = tuple[int, str | int]
"""The last step of a way: the ``id`` of an object, and that of the child that the step leads to.

Where memory was found and no object stands for it, the text of the step stands for the child.
"""


@final
class Ways:
    """The objects that a search has reached, and the ways by which it reached them.

    The search fills the dicts, and clears them when it is closed.

    Parameters
    ----------
    seen : dict
        The objects that were reached, by ``id``.
    links : dict
        For each of them, the ``id`` of the object that led to it, or the origin of a root.
    other_ways : dict
        For each subject that was found, the last steps of further ways to it.
    lone_tensors : dict
        For memory that was found at a tensor that refers to nothing else, the ``id`` of the tensor.
    found : dict
        Subjects by the ``id`` of the object that they were found at.
    kept : int
        How many ways to one subject are returned at most.
    """

    __slots__ = ("_found", "_links", "_lone_tensors", "_other_ways", "_seen", "kept")

    def __init__(
        self,
        seen: dict[int, object],
        links: dict[int, int | Origin],
        other_ways: dict[Subject, list[Link]],
        lone_tensors: dict[Subject, int],
        found: dict[int, Subject],
        *,
        kept: int,
    ) -> None:
        self.kept: Final = kept
        self._lone_tensors = lone_tensors
        self._seen = seen
        self._links = links
        self._other_ways = other_ways
        self._found = found

    def chains_of(self, subject: Subject) -> list[Holder]:
        """Return how code reaches a subject: at most `kept` chains, the shortest first."""
        return [
            holder_of(origin, chain, step, cache_on(chain, origin.text)) for origin, chain, step in self.to(subject)
        ]

    def carriers_of(self, subject: Subject) -> list[Holder]:
        """Return the tensors whose graphs hold a subject, as code."""
        carriers: dict[Holder, None] = {}
        for origin, chain, _ in self.to(subject):
            for index in range(len(chain) - 1, 0, -1):
                if action_of(class_of(chain[index])) == IN_GRAPH and action_of(class_of(chain[index - 1])) != IN_GRAPH:
                    carriers[holder_of(origin, chain[: index + 1])] = None
                    tensor = self._found.get(id(chain[index - 1]))
                    for its_origin, its_chain, step in () if tensor is None else self.to(tensor):
                        if its_chain[-1] is chain[index - 1] and not step:
                            carriers[holder_of(its_origin, [*its_chain, chain[index]])] = None
                    break
        return list(carriers)

    def passes_of(self, subject: Subject) -> int:
        """Return in how many passes of a loop the graph of a tensor was made; 0 without a graph."""
        framework, tensor = self._tensor_of(subject)
        return 0 if framework is None else framework.steps_behind(tensor)

    def graph_nbytes_of(self, subject: Subject) -> int:
        """Return the bytes that the graph of a tensor saved."""
        framework, tensor = self._tensor_of(subject)
        return 0 if framework is None else framework.graph_nbytes_behind([tensor])

    def node_nbytes_of(self, subjects: Sequence[Subject], carriers: Container[int]) -> int:
        """Return about how many bytes the nodes take that the graph of the last subject adds.

        Nodes that are in the graphs of the other subjects as well do not count. 0 where the last
        subject is one of the carriers, which are tensors by ``id``.
        """
        tensors = [self._tensor_of(subject) for subject in subjects]
        framework, last = tensors[-1]
        if framework is None or id(last) in carriers:
            return 0
        return framework.node_nbytes_behind([tensor for its_framework, tensor in tensors if its_framework is framework])

    def roots_of_graphs(self, subjects: Iterable[Subject]) -> dict[int, object]:
        """Return the tensors whose graphs hold some subjects, by ``id``."""
        # For each node that was passed, the ``id`` of the tensor that leads to it: ways through a
        # long graph share most of their nodes.
        found: dict[int, int] = {}
        tensors: dict[int, object] = {}
        for subject in subjects:
            for parent, _ in self._other_ways.get(subject, ())[:1]:
                path: list[int] = []
                key = parent
                while key not in found and action_of(class_of(self._seen[key])) == IN_GRAPH:
                    path.append(key)
                    link = self._links[key]
                    if type(link) is not int:
                        break
                    key = link
                key = found.get(key, key)
                found.update(dict.fromkeys(path, key))
                known = framework_of(class_of(self._seen[key]))
                if known is not None and known.part == "tensor":
                    tensors[key] = self._seen[key]
        return tensors

    def _tensor_of(self, subject: Subject) -> tuple[Framework | None, Any]:
        """Return the framework and the tensor that a subject is; twice None if it is no tensor."""
        for _, chain, step in self.to(subject):
            known = None if step else framework_of(class_of(chain[-1]))
            if known is not None and known.part == "tensor":
                return known.framework, chain[-1]
        return None, None

    def is_of_evaluation(self, subject: Subject) -> bool:
        """Return whether the graph that holds a subject is that of a model in eval mode."""
        for _, chain, _ in self.to(subject):
            for index, thing in enumerate(chain):
                known = framework_of(class_of(thing))
                if known is not None and known.part != "module":
                    if known.framework.is_of_evaluation(chain[:index], thing):
                        return True
                    break
        return False

    def to(self, subject: Subject) -> list[tuple[Origin, list[object], str]]:
        """Return the ways to a subject, each as three parts.

        These are the origin, the objects of the chain, and the text of a last step, which
        is empty where the last object is the subject itself.
        """
        found: list[tuple[Origin, list[object], str]] = []
        if isinstance(subject, Entry) and subject.key in self._links:
            found.append((*self.way_to(subject.key), ""))
        if subject in self._lone_tensors:
            found.append((*self.way_to(self._lone_tensors[subject]), ""))
        for parent, last in self._other_ways.get(subject, ()):
            origin, chain = self.way_to(parent)
            if isinstance(last, str):
                found.append((origin, chain, last))
            else:
                found.append((origin, [*chain, self._seen[last]], ""))
        return found[: self.kept]

    def roots(self) -> list[int]:
        """Return the objects that were reached as roots, by ``id``."""
        return [key for key, link in self._links.items() if isinstance(link, Origin)]

    def way_to(self, key: int) -> tuple[Origin, list[object]]:
        """Return the way to an object: where it begins, and the objects, that one last."""
        chain = [self._seen[key]]
        link = self._links[key]
        while not isinstance(link, Origin):
            chain.append(self._seen[link])
            link = self._links[link]
        chain.reverse()
        return link, chain
