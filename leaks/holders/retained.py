"""Report memory by the object that retains it, from the graph of objects of a search.

A report by line has one cause as often as it has lines: a list of tuples of a loss, its logits and
its inputs is three rows, each with a chain of its own. Here memory is reported once, under the
object that retains it: of the objects that dominate it (see `dominators`) the container with the
most items, because there it accumulates.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Hashable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Final, cast, final

from ...scopes.base.sites import Site
from ...scopes.tree_walk import instance_dict_of
from ..report.retainer import SHARED
from .dominators import UNREACHED, Dominators, dominators_of
from .growing import growing_line
from .object_graph import ObjectGraph
from .origins import reworded
from .paths import holder_of
from .references import (
    class_of,
    framework_of,
    is_namespace,
    is_weak_keyed,
    qualified_name_of,
)
from .roots import library_roots
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

_HOLDERS_ASKED: Final = 50
"""So many of its holders are asked for their names: to find one takes time for the items of a list.
"""

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
    graph = ObjectGraph(search, dict.fromkeys(identity for storages, _ in pieces for identity, _ in storages))
    tree = dominators_of(graph.successors)
    if asks_libraries and not search.has_asked_libraries and not graph.explains(search, tree):
        search.from_roots(library_roots(), libraries=True)
        graph.add_roots(search.library_referents)
        tree = dominators_of(graph.successors)
    pieces_by_node, largest = _divided(graph, tree, pieces)
    rows = [_row(search, graph.objects[node], of_node) for node, of_node in pieces_by_node.items() if node]
    if largest:
        # The first and the last may be in variables of a loop: one in the middle stands for all.
        holder = _shared_by(graph, tree, search, largest[len(largest) // 2])
        rows.append(Retained(holder, "", None, tuple(pieces_by_node[0].items()), None))
    return _merged(rows)


def _divided(
    graph: ObjectGraph, tree: Dominators, pieces: Sequence[Piece]
) -> tuple[dict[int, dict[int, int]], list[Hashable]]:
    """Return the pieces by the node that retains them, and the largest storages that none does.

    Node 0 has the pieces that no single object retains. Each piece is given by its index, with the
    bytes that are retained.
    """
    named = _named_nodes(graph, tree)
    pieces_by_node: dict[int, dict[int, int]] = {}
    is_counted = bytearray(1 + len(graph.storages))
    shared: dict[int, list[Hashable]] = {}
    for storages, place in pieces:
        for identity, nbytes in storages:
            node = graph.storages[identity]
            if tree.above[node] == UNREACHED:
                continue
            nbytes_by_place = pieces_by_node.setdefault(named[node], {})
            nbytes_by_place[place] = nbytes_by_place.get(place, 0) + (0 if is_counted[node] else nbytes)
            is_counted[node] = 1
            if not named[node]:
                shared.setdefault(nbytes, []).append(identity)
    return pieces_by_node, shared[max(shared)] if shared else []


def _named_nodes(graph: ObjectGraph, tree: Dominators) -> list[int]:
    """Return for each node the one to report its memory under: itself, or one that dominates it.

    0 stands for memory that no single object retains.
    """
    naming = _Naming(graph, tree)
    named = naming.named
    for node in tree.order[1:]:
        other = named[tree.above[node]]
        # Most nodes are storages with their tensors, for which anything around them is better.
        is_tensor_in_other = other and node <= len(graph.storages)
        named[node] = node if not is_tensor_in_other and naming.is_better(node, other) else other
    return named


@final
class _Naming:
    """Judges under which of the nodes that dominate some memory it is best reported."""

    def __init__(self, graph: ObjectGraph, tree: Dominators) -> None:
        self._graph, self._tree = graph, tree
        self._weights = graph.weights(tree)
        self.named = [0] * len(tree.above)
        # How many of the nodes that each node immediately dominates retain wanted storages.
        self._item_counts = [0] * len(tree.above)
        for node in tree.order:
            if self._weights[node] and tree.above[node] != UNREACHED:
                self._item_counts[tree.above[node]] += 1

    def is_better(self, node: int, other: int) -> bool:
        """Return whether memory is better reported under a node than under one around it.

        If `other` is 0, there is none around it.
        """
        thing = self._graph.objects[node]
        if thing is None or not self._weights[node]:
            return False
        known = framework_of(class_of(thing))
        if known is not None:
            # A tensor or a model, which is named only if there is nothing else; or part of a graph.
            is_named = not other and known.part != "node"
            return is_named and self._graph.is_of_one_variable(node, self._tree)
        if is_namespace(thing):
            return False
        is_part = _is_inner(self._graph, node, self._tree.above)
        if not other:
            return not is_part or self._graph.is_of_one_variable(node, self._tree)
        if is_part or self._is_within_its_like(node, other):
            return False
        if self._gathers(other):
            return self._gathers(node) and self._item_counts[node] >= self._item_counts[other]
        return self._weights[node] * _OBJECTS_NAMED >= self._weights[other]

    def _gathers(self, node: int) -> bool:
        """Return whether a node is a container of several items that retain memory."""
        return _is_container(self._graph.objects[node]) and self._item_counts[node] >= _ITEMS_OF_CONTAINER

    def _is_within_its_like(self, node: int, other: int) -> bool:
        """Return whether a node around it has its type, and as many items or more.

        A linked list, or a tree, is reported under its first node.
        """
        graph, item_counts = self._graph, self._item_counts
        cls = class_of(graph.objects[node])
        while other:
            if class_of(graph.objects[other]) is cls and item_counts[other] >= item_counts[node]:
                return True
            other = self.named[self._tree.above[other]]
        return False


def _is_container(thing: object) -> bool:
    return issubclass(class_of(thing), _CONTAINERS) or is_weak_keyed(thing)


def _is_inner(graph: ObjectGraph, node: int, parents: Sequence[int]) -> bool:
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


def _shared_by(graph: ObjectGraph, tree: Dominators, search: Search, identity: Hashable) -> str:
    """Return the text for memory that some objects hold together, with examples of them.

    One of those that differ only by keys is enough.
    """
    holders, of_variables = graph.holders_of(identity)
    texts = {_KEYS.sub("[]", text): text for text in graph.variables_of(of_variables)}
    # One of those that an object dominates, such as the items of a list, is enough too.
    asked = [*{tree.above[holder] or -holder: holder for holder in holders}.values()]
    for holder in asked[:: -(-len(asked) // _HOLDERS_ASKED) or 1]:
        text = holder_of(*search.ways.way_to(id(graph.objects[holder])))
        texts.setdefault(_KEYS.sub("[]", text), text)
    shown = [*texts.values()][:_HOLDERS_SHOWN]
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
