"""Report memory by the object that retains it, from the graph of objects of a search.

A report by line has one cause as often as it has lines: a list of tuples of a loss, its logits and
its inputs is three rows, each with a chain of its own. Here memory is reported once, under the
object that retains it: of the objects that dominate it (see `dominators`) the container with the
most items, because there it accumulates.
"""

from __future__ import annotations

import gc
import re
import sys
import weakref
from collections import Counter, deque
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
from .origins import reworded
from .paths import holder_of
from .references import (
    SKIPPED,
    action_of,
    class_of,
    framework_of,
    is_namespace,
    is_weak_keyed,
    qualified_name_of,
    referents_of,
)
from .roots import library_roots, user_roots
from .search import Search

__all__ = [
    "Piece",
    "Retained",
    "retained_by",
]

_CONTAINERS: Final = (list, dict, set, deque)

_KEYS: Final = re.compile(r"\[[^\[\]]*\]")

_ITEMS_OF_CONTAINER: Final = 2
"""A container that dominates fewer objects with memory is no better name than another object."""

_OBJECTS_NAMED: Final = 100
"""Of the memory of an object that is no container, a part that is smaller than one in so many is
reported under the object: a linked list has as many such parts as nodes.
"""

_HOLDERS_SHOWN: Final = 3
"""So many holders of memory are named that no single object retains."""

Piece = tuple[Sequence[tuple[Hashable, int]], int]
"""The storages of a resource or of memory, with their bytes; and its index in the caller's list."""


@final
@dataclass(frozen=True, slots=True)
class Retained:
    """An object, and the pieces whose memory it retains.

    Attributes
    ----------
    holder : str
        How code reaches the object.
    type : str
        The name of its type.
    length : int or None
        How many items it has.
    pieces : tuple of (int, int)
        The indexes of the pieces in the caller's list, each with the bytes of it that this object
        retains. A storage counts for the first piece that has it.
    grown_at : Site or None
        The line that adds to it, if there is only one.
    """

    holder: str
    type: str
    length: int | None
    pieces: tuple[tuple[int, int], ...]
    grown_at: Site | None


@final
class _Graph:
    """The objects that a search has reached, as a graph of numbered nodes.

    Node 0 is the root. Then come the wanted storages, and then objects. A tensor that refers to
    nothing but its storage is one node with it: so a list of a million tensors is a million nodes,
    and not two million. So is an object that owns memory, such as the ``bytes`` behind an array,
    which a search passes over: its ``id`` is the identity of the memory.

    Attributes
    ----------
    storages : dict
        The node of each wanted storage.
    objects : list
        The object of each node; None for the root. For a storage, the only object that refers to
        it if that is one node with it; otherwise None.
    successors : list of sequence of int
        For each node, the nodes that it refers to.
    """

    __slots__ = ("_numbers", "_variables", "objects", "storages", "successors")

    def __init__(self, search: Search, wanted: Iterable[Hashable]) -> None:
        self.storages: dict[Hashable, int] = {identity: number for number, identity in enumerate(wanted, 1)}
        storages = self.storages
        self.objects: list[object] = [None] * (1 + len(storages))
        objects = self.objects
        numbers = self._numbers = dict[int, int]()
        # The storages that several tensors are one node with.
        shared = set[int]()
        # The storages of buffers behind arrays, by ``id`` of the buffer.
        buffers: dict[int, int] = {}
        for key, thing in islice(search.seen.items(), search.reach):
            known = framework_of(class_of(thing))
            if known is not None and known.part == "tensor":
                identity = known.framework.lone_storage(thing)
                if identity is not None:
                    if identity in storages:
                        number = numbers[key] = storages[identity]
                        if objects[number] is not None:
                            shared.add(number)
                        objects[number] = thing
                    continue
                for _, child in known.framework.references(thing):
                    buffer = child.obj if isinstance(child, memoryview) else child
                    if id(buffer) in storages and action_of(class_of(buffer)) == SKIPPED:
                        buffers[id(buffer)] = storages[id(buffer)]
            numbers[key] = len(objects)
            objects.append(thing)
        numbers |= buffers
        self.successors: list[Sequence[int]] = [()] * len(objects)
        for number in shared:
            objects[number] = None
        # How many variables refer to each node.
        self._variables = Counter(
            numbers[id(thing)] for group in user_roots() for _, thing in group if id(thing) in numbers
        )
        roots = {numbers[key] for key in search.ways.roots() if key in numbers}
        self.successors[0] = list(roots | self._variables.keys())
        self.add_roots(search.library_referents)
        for number in range(1 + len(storages), len(objects)):
            thing = objects[number]
            known = framework_of(class_of(thing))
            below: list[int] = []
            if known is not None:
                below += [
                    storages[identity] for _, identity, _ in known.framework.memory_of(thing) if identity in storages
                ]
            if id(thing) in storages:
                below.append(storages[id(thing)])
            for storage in below:
                objects[storage] = None
            for child in referents_of(thing):
                child_number = numbers.get(id(child))
                if child_number is not None:
                    below.append(child_number)
                elif class_of(child) is dict:
                    # The ``__dict__`` of an instance, which CPython makes when somebody asks for
                    # it, was not there when the search came by.
                    values = cast("dict[object, object]", child).copy().values()
                    below += [numbers[key] for value in values if (key := id(value)) in numbers]
            if buffers:
                # Also ``bytes``, which `referents_of` leaves out.
                below += [buffers[id(child)] for child in gc.get_referents(thing) if id(child) in buffers]
            self.successors[number] = below

    def add_roots(self, keys: Iterable[int]) -> None:
        """Add edges from the root to some objects that libraries refer to, by ``id``."""
        numbers = [self._numbers[key] for key in keys if key in self._numbers]
        self._variables.update(numbers)
        self.successors[0] = list({*self.successors[0], *numbers})

    def is_of_one_variable(self, node: int, tree: Dominators) -> bool:
        """Return whether nothing but one variable refers to an object."""
        return tree.holders[node] == 0 and self._variables[node] <= 1

    def holders_of(self, identity: Hashable, search: Search) -> list[str]:
        """Return how code reaches the variables and objects that hold a storage.

        Tensors, graphs and models that have it are not named, but what holds them.
        """
        referrers: dict[int, list[int]] = {}
        for number, below in enumerate(self.successors):
            for child in below:
                referrers.setdefault(child, []).append(number)
        storage = self.storages[identity]
        reached = {storage: None}
        pending = [storage]
        texts: dict[str, None] = {}
        while pending:
            number = pending.pop(0)
            for above in referrers.get(number, ()):
                if above in reached:
                    continue
                if not above:
                    texts |= {
                        origin.text: None
                        for group in user_roots()
                        for origin, thing in group
                        if self._numbers.get(id(thing)) == number
                    }
                elif self._is_part(above, referrers):
                    reached[above] = None
                    pending.append(above)
                else:
                    texts[holder_of(*search.ways.way_to(id(self.objects[above])))] = None
        return list(texts)

    def _is_part(self, number: int, referrers: Mapping[int, Sequence[int]]) -> bool:
        """Return whether an object is a tensor, of a graph or of a model, or a tuple of such."""
        thing = self.objects[number]
        if framework_of(class_of(thing)) is not None or class_of(thing) is tuple:
            return True
        is_dict = class_of(thing) is dict
        return is_dict and any(framework_of(class_of(self.objects[above])) for above in referrers.get(number, ()))

    def explains(self, search: Search, tree: Dominators) -> bool:
        """Return whether the graph has all references to the objects that retain memory.

        If not, something outside of it refers to one of them, such as a variable of a library.
        """
        # Without nodes of autograd graphs: C++ refers to them.
        inner = {
            number
            for number, weight in enumerate(self.weights(tree))
            if weight and tree.above[number] > 0 and not _is_node(self.objects[number])
        }
        unexplained = dict.fromkeys(inner, 0)
        for key, number in self._numbers.items():
            # The search passes over buffers.
            if number in inner and key in search.seen:
                is_in_objects = self.objects[number] is not None
                unexplained[number] += _references(search.seen, key) - _OF_THE_SEARCH - is_in_objects
        for below in islice(self.successors, 1, None):
            for number in below:
                if number in inner:
                    unexplained[number] -= 1
        left = {number for number, references in unexplained.items() if references > 0}
        for key, number in self._numbers.items() if left else ():
            if number in left:
                kind = kind_of(search.seen[key])
                unexplained[number] -= 0 if kind is None else kind.library_references(search.seen[key])
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
    return known is not None and known.part == "node"


def _references(things: Mapping[int, object], key: int) -> int:
    return sys.getrefcount(things[key])


_OF_THE_SEARCH: Final = _references({0: object()}, 0)
"""What `_references` returns for an object that only the dict refers to."""


def retained_by(search: Search, pieces: Sequence[Piece], *, asks_libraries: bool = True) -> list[Retained]:
    """Return what retains some pieces of memory; empty where the search did not come to its end.

    Parameters
    ----------
    search : Search
        The search that has found the holders of the memory. It must not be closed yet.
    pieces : sequence of Piece
        The memory to report. A piece with several storages, such as a model, counts for each object
        that retains some of them.
    asks_libraries : bool, default True
        Whether libraries are searched for holders if references to what retains memory are not
        explained otherwise. An expression that is being evaluated has such references too.
    """
    if search.cut_short or search.stopped:
        return []
    graph = _Graph(search, dict.fromkeys(identity for storages, _ in pieces for identity, _ in storages))
    tree = dominators_of(graph.successors)
    if asks_libraries and not search.has_asked_libraries and not graph.explains(search, tree):
        search.from_roots(library_roots(), libraries=True)
        graph.add_roots(search.library_referents)
        tree = dominators_of(graph.successors)
    named = _named_nodes(graph, tree)
    pieces_by_node: dict[int, dict[int, int]] = {}
    is_counted = bytearray(1 + len(graph.storages))
    # Storages that no single object retains.
    shared: list[Hashable] = []
    for storages, place in pieces:
        for identity, nbytes in storages:
            node = graph.storages[identity]
            if tree.above[node] == UNREACHED:
                continue
            nbytes_by_place = pieces_by_node.setdefault(named[node], {})
            nbytes_by_place[place] = nbytes_by_place.get(place, 0) + (0 if is_counted[node] else nbytes)
            is_counted[node] = 1
            if not named[node]:
                shared.append(identity)
    rows = [_row(search, graph.objects[node], of_node) for node, of_node in pieces_by_node.items() if node]
    if shared:
        # One in the middle stands for all.
        holder = _shared_by(graph.holders_of(shared[len(shared) // 2], search))
        rows.append(Retained(holder, "", None, tuple(pieces_by_node[0].items()), None))
    return _merged(rows)


def _named_nodes(graph: _Graph, tree: Dominators) -> list[int]:
    """Return for each node the one to report its memory under: itself, or one that dominates it.

    0 stands for memory that no single object retains.
    """
    above, weights = tree.above, graph.weights(tree)
    # How many of the nodes that each node immediately dominates retain wanted storages.
    item_counts = [0] * len(above)
    for node in tree.order:
        if weights[node] and above[node] != UNREACHED:
            item_counts[above[node]] += 1
    named = [0] * len(above)

    def is_better(node: int, other: int) -> bool:
        """Return whether memory is better reported under a node than under one around it."""
        thing = graph.objects[node]
        if _is_node(thing) or is_namespace(thing):
            return False
        is_part = framework_of(class_of(thing)) is not None or _is_inner(graph, node, above)
        if not other:
            return not is_part or graph.is_of_one_variable(node, tree)
        if is_part:
            return False
        is_container, is_other_container = (
            _is_container(graph.objects[candidate]) and item_counts[candidate] >= _ITEMS_OF_CONTAINER
            for candidate in (node, other)
        )
        if is_other_container and not (is_container and item_counts[node] >= item_counts[other]):
            return False
        if not is_other_container and weights[node] * _OBJECTS_NAMED < weights[other]:
            return False
        # A linked list, or a tree, is reported under its first node.
        while other:
            if class_of(graph.objects[other]) is class_of(thing) and item_counts[other] >= item_counts[node]:
                return False
            other = named[above[other]]
        return True

    for node in tree.order[1:]:
        other = named[above[node]]
        is_object = graph.objects[node] is not None and weights[node] > 0
        named[node] = node if is_object and is_better(node, other) else other
    return named


def _is_container(thing: object) -> bool:
    return issubclass(class_of(thing), _CONTAINERS) or is_weak_keyed(thing)


def _is_inner(graph: _Graph, node: int, parents: Sequence[int]) -> bool:
    """Return whether an object is no more than a part of another one: its dict, or a tuple."""
    thing: Any = graph.objects[node]
    if class_of(thing) is tuple:
        return True
    parent = parents[node]
    return (
        class_of(thing) is dict
        and parent > 0
        and class_of(graph.objects[parent]) is not dict
        and instance_dict_of(graph.objects[parent]) is thing
    )


def _shared_by(holders: Sequence[str]) -> str:
    """Return the text for memory that some objects hold together."""
    shown = holders[:_HOLDERS_SHOWN]
    return f"{SHARED}, such as {', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else SHARED


def _row(search: Search, thing: object, nbytes_by_place: Mapping[int, int]) -> Retained:
    origin, chain = search.ways.way_to(id(thing))
    cls = class_of(thing)
    name = qualified_name_of(cls)
    length = len(cast("Sized", thing)) if cls in _CONTAINERS or cls is weakref.WeakKeyDictionary else None
    growing = growing_line(origin, chain) if _is_container(thing) else None
    return Retained(holder_of(origin, chain), name, length, tuple(nbytes_by_place.items()), growing)


def _merged(rows: Sequence[Retained]) -> list[Retained]:
    """Return the rows, joined to one where their holders differ only by keys."""
    groups: dict[tuple[str, str], list[Retained]] = {}
    for row in rows:
        groups.setdefault((_KEYS.sub("[]", row.holder), row.type), []).append(row)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups.values()]


def _joined(rows: Sequence[Retained]) -> Retained:
    """Return one row for several whose holders differ only by keys."""
    keys = [_KEYS.findall(row.holder) for row in rows]
    texts = iter(keys[0])
    # At each position of a key, how many different keys the rows have.
    columns = [len({row[position] for row in keys}) for position in range(len(keys[0]))]
    counts: Mapping[int, int] = dict(enumerate(columns))
    positions = iter(range(len(columns)))

    def common_key(_match: re.Match[str]) -> str:
        text, position = next(texts), next(positions)
        return text if counts[position] == 1 else f"[...] ({counts[position]:,} keys)"

    holder = _KEYS.sub(common_key, rows[0].holder)
    nbytes_by_place: dict[int, int] = {}
    for place, nbytes in (piece for row in rows for piece in row.pieces):
        nbytes_by_place[place] = nbytes_by_place.get(place, 0) + nbytes
    lengths = [row.length for row in rows]
    total = sum(length for length in lengths if length is not None) if None not in lengths else None
    return replace(
        rows[0],
        holder=reworded(rows[0].holder, holder),
        length=total,
        pieces=tuple(nbytes_by_place.items()),
        grown_at=rows[0].grown_at if len({row.grown_at for row in rows}) == 1 else None,
    )
