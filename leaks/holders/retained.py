"""What retains the memory that a search has found: its graph of objects, and the rows of it.

Rows by line name one cause as often as it has lines: a list of a loss, its logits and its inputs is
three rows, each with a chain that ends elsewhere. Here memory is reported by the object that
retains it: of those that dominate it, the container with the most items, which is where it
accumulates.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, cast, final

from ...scopes.base.sites import Site
from ...scopes.kinds import kind_of
from ...scopes.tree_walk import instance_dict_of
from ..report.retainer import SHARED
from .dominators import UNREACHED, Dominators, dominators_of
from .growing import growing_line
from .references import class_of, framework_of, is_namespace, is_weak_keyed, qualified_name_of, referents_of
from .roots import library_roots, user_roots
from .search import Search

__all__ = [
    "Piece",
    "Retained",
    "retained_by",
]

_CONTAINERS: Final = (list, dict, set, deque)
_KEYS: Final = re.compile(r"\[[^\[\]]*\]")
_MANY: Final = 2

Piece = tuple[Sequence[tuple[Hashable, int]], int]
"""The storages of something that was born, with their bytes; and its place in the caller's list."""


@final
@dataclass(frozen=True, slots=True)
class Retained:
    """An object, and the pieces whose memory it retains.

    Attributes
    ----------
    holder : str
        How code reaches it.
    type : str
        The name of its type.
    length : int or None
        How many items it has.
    places : tuple of int
        The places of the pieces.
    grown_at : Site or None
        The only line that adds to it.
    """

    holder: str
    type: str
    length: int | None
    places: tuple[int, ...]
    grown_at: Site | None


@final
class _Graph:
    """A graph of the objects that a search met: node 0 is the root, then storages, then objects.

    A tensor with nothing behind it but its storage is one node with it: a list of a million tensors
    has a million nodes.
    """

    __slots__ = ("_numbers", "objects", "storages", "successors")

    def __init__(self, search: Search, wanted: Iterable[Hashable]) -> None:
        self.storages: dict[Hashable, int] = {identity: number for number, identity in enumerate(wanted, 1)}
        storages = self.storages
        self.objects: list[object] = [None] * (1 + len(storages))
        objects = self.objects
        numbers = self._numbers = dict[int, int]()
        for key, thing in islice(search.ours.items(), search.reach):
            known = framework_of(class_of(thing))
            if known is not None and known[1] == "tensor":
                identity = known[0].lone_storage(thing)
                if identity is not None:
                    if identity in storages:
                        numbers[key] = storages[identity]
                    continue
            numbers[key] = len(objects)
            objects.append(thing)
        self.successors: list[Sequence[int]] = [()] * len(objects)
        roots = {numbers[id(thing)] for group in user_roots() for _, thing in group if id(thing) in numbers}
        roots |= {numbers[key] for key in search.ways.roots() if key in numbers}
        self.successors[0] = list(roots)
        self.add_roots(search.of_libraries)
        for number in range(1 + len(storages), len(objects)):
            thing = objects[number]
            known = framework_of(class_of(thing))
            below: list[int] = []
            if known is not None:
                below += [storages[identity] for _, identity, _ in known[0].memory_of(thing) if identity in storages]
            for child in referents_of(thing):
                place = numbers.get(id(child))
                if place is not None:
                    below.append(place)
                elif class_of(child) is dict:
                    # The namespace of an instance, which CPython makes when it is first asked for.
                    values = cast("dict[object, object]", child).copy().values()
                    below += [numbers[key] for value in values if (key := id(value)) in numbers]
            self.successors[number] = below

    def add_roots(self, keys: Iterable[int]) -> None:
        """Let objects be held by something outside of the graph too, by ``id``."""
        self.successors[0] = list({*self.successors[0], *(self._numbers[key] for key in keys if key in self._numbers)})

    def explains(self, search: Search, tree: Dominators) -> bool:
        """Return whether the graph has all references to what is retained: nothing else has one."""
        # Nodes of graphs are held by C++.
        inner = {
            number
            for number, weight in enumerate(self.weights(tree))
            if weight and tree.above[number] > 0 and not _is_node(self.objects[number])
        }
        unexplained = dict.fromkeys(inner, 0)
        last_storage = len(self.storages)
        for key, number in self._numbers.items():
            if number in inner:
                # Of an object that is no lone tensor `objects` has another reference.
                unexplained[number] += _references(search.ours, key) - _OF_THE_SEARCH - (number > last_storage)
        for below in islice(self.successors, 1, None):
            for number in below:
                if number in inner:
                    unexplained[number] -= 1
        left = {number for number, references in unexplained.items() if references > 0}
        for key, number in self._numbers.items() if left else ():
            if number in left:
                kind = kind_of(search.ours[key])
                unexplained[number] -= 0 if kind is None else kind.library_references(search.ours[key])
        return all(unexplained[number] <= 0 for number in left)

    def weights(self, tree: Dominators) -> list[int]:
        """Return how many storages each node dominates."""
        holds = [0] * len(tree.above)
        for number in self.storages.values():
            if tree.above[number] != UNREACHED:
                holds[number] = 1
        return tree.totals(holds)


def _is_node(thing: object) -> bool:
    known = framework_of(class_of(thing))
    return known is not None and known[1] == "node"


def _references(things: Mapping[int, object], key: int) -> int:
    return sys.getrefcount(things[key])


# How many references there are to what only a dict has, as the interpreter counts them.
_OF_THE_SEARCH: Final = _references({0: object()}, 0)


def retained_by(search: Search, pieces: Sequence[Piece]) -> list[Retained]:
    """Return what retains some pieces of memory; empty where the search did not come to its end.

    Parameters
    ----------
    search : Search
        What has found who holds them, and is not closed yet.
    pieces : sequence of Piece
        What is to be reported. A piece with several storages stands where its first one does.
    """
    if search.cut_short or search.stopped:
        return []
    graph = _Graph(search, dict.fromkeys(identity for storages, _ in pieces for identity, _ in storages))
    tree = dominators_of(graph.successors)
    if not search.has_asked_libraries and not graph.explains(search, tree):
        search.from_roots(library_roots(), libraries=True)
        graph.add_roots(search.of_libraries)
        tree = dominators_of(graph.successors)
    last_storage = len(graph.storages)
    weights = graph.weights(tree)
    fans = [0] * len(tree.above)
    for node in tree.order:
        if weights[node] and tree.above[node] != UNREACHED:
            fans[tree.above[node]] += 1
    # Of what dominates each node, itself included, the best one to name.
    named = [0] * len(tree.above)
    for node in tree.order[1:]:
        above = named[tree.above[node]]
        if node <= last_storage or not weights[node]:
            named[node] = above
            continue
        named[node] = node if _is_better(graph, fans, node, above, tree.above) else above
    places: dict[int, list[int]] = {}
    for storages, place in pieces:
        node = graph.storages[storages[0][0]] if storages else 0
        if node and tree.above[node] != UNREACHED:
            places.setdefault(named[node], []).append(place)
    rows = [_row(search, graph.objects[node] if node else None, those) for node, those in places.items()]
    return _merged(rows)


def _is_better(graph: _Graph, fans: Sequence[int], node: int, above: int, parents: Sequence[int]) -> bool:
    """Return whether a node is a better name for what it dominates than one that dominates it."""
    thing = graph.objects[node]
    if framework_of(class_of(thing)) is not None or _is_inner(graph, node, parents):
        return False
    if not above:
        return True
    is_container, is_above_container = (
        _is_container(graph.objects[one]) and fans[one] >= _MANY for one in (node, above)
    )
    if is_container and is_above_container:
        return fans[node] >= fans[above]
    return is_container or not is_above_container


def _is_container(thing: object) -> bool:
    return issubclass(class_of(thing), _CONTAINERS) or is_weak_keyed(thing)


def _is_inner(graph: _Graph, node: int, parents: Sequence[int]) -> bool:
    """Return whether an object is a part of another one: its namespace, or a tuple."""
    thing: Any = graph.objects[node]
    if class_of(thing) is tuple or is_namespace(thing):
        return True
    parent = parents[node]
    return (
        class_of(thing) is dict
        and parent > 0
        and class_of(graph.objects[parent]) is not dict
        and instance_dict_of(graph.objects[parent]) is thing
    )


def _row(search: Search, thing: object, places: Sequence[int]) -> Retained:
    if thing is None:
        return Retained(SHARED, "", None, tuple(places), None)
    start, chain, text = search.ways.way_to(id(thing))
    cls = class_of(thing)
    name = qualified_name_of(cls)
    length = len(cast("Sized", thing)) if cls in _CONTAINERS or cls is weakref.WeakKeyDictionary else None
    growing = growing_line(start, chain, text) if _is_container(thing) else None
    return Retained(text, name, length, tuple(places), growing)


def _merged(rows: Sequence[Retained]) -> list[Retained]:
    """Return the rows with those joined that differ by keys alone."""
    groups: dict[tuple[str, str], list[Retained]] = {}
    for row in rows:
        groups.setdefault((_KEYS.sub("[]", row.holder), row.type), []).append(row)
    return [_joined(those) if len(those) > 1 else those[0] for those in groups.values()]


def _joined(rows: Sequence[Retained]) -> Retained:
    keys = [_KEYS.findall(row.holder) for row in rows]
    texts = iter(keys[0])
    columns = [len({row[place] for row in keys}) for place in range(len(keys[0]))]
    counts: Mapping[int, int] = dict(enumerate(columns))
    places = iter(range(len(columns)))

    def one(_match: re.Match[str]) -> str:
        text, place = next(texts), next(places)
        return text if counts[place] == 1 else f"[...] ({counts[place]:,} keys)"

    holder = _KEYS.sub(one, rows[0].holder)
    lengths = [row.length for row in rows]
    total = sum(length for length in lengths if length is not None) if None not in lengths else None
    return replace(
        rows[0],
        holder=holder,
        length=total,
        places=tuple(place for row in rows for place in row.places),
        grown_at=rows[0].grown_at if len({row.grown_at for row in rows}) == 1 else None,
    )
