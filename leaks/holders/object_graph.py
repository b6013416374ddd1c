"""The objects that a search for holders has reached, as a graph of numbered nodes."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, cast, final

from ...scopes.kinds import kind_of
from .dominators import UNREACHED, Dominators
from .references import SKIPPED, action_of, class_of, framework_of, referents_of
from .roots import user_roots
from .search import Search

__all__ = [
    "ObjectGraph",
    "is_node_of_autograd",
]


@final
class ObjectGraph:
    """The objects that a search has reached, and the storages that are asked for, as a graph.

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
        self.objects: list[object] = [None] * (1 + len(self.storages))
        self._numbers: dict[int, int] = {}
        buffers = self._number_objects(search)
        # How many variables refer to each node.
        self._variables = Counter(
            self._numbers[id(thing)] for group in user_roots() for _, thing in group if id(thing) in self._numbers
        )
        self.successors: list[Sequence[int]] = [()] * len(self.objects)
        roots = {self._numbers[key] for key in search.ways.roots() if key in self._numbers}
        self.successors[0] = list(roots | self._variables.keys())
        self.add_roots(search.library_referents)
        for number in range(1 + len(self.storages), len(self.objects)):
            self.successors[number] = self._below(self.objects[number], buffers)

    def _number_objects(self, search: Search) -> dict[int, int]:
        """Number the objects, and return the storages of buffers behind arrays, by ``id``."""
        storages, objects, numbers = self.storages, self.objects, self._numbers
        # The storages that several tensors are one node with.
        shared = set[int]()
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
        for number in shared:
            objects[number] = None
        return buffers

    def _below(self, thing: object, buffers: Mapping[int, int]) -> list[int]:
        """Return the nodes that an object refers to."""
        storages, numbers = self.storages, self._numbers
        known = framework_of(class_of(thing))
        below: list[int] = []
        if known is not None:
            below += [storages[identity] for _, identity, _ in known.framework.memory_of(thing) if identity in storages]
        if id(thing) in storages:
            below.append(storages[id(thing)])
        for storage in below:
            self.objects[storage] = None
        for child in referents_of(thing):
            child_number = numbers.get(id(child))
            if child_number is not None:
                below.append(child_number)
            elif class_of(child) is dict:
                # The ``__dict__`` of an instance, which CPython makes when somebody asks for it,
                # was not there when the search came by.
                values = cast("dict[object, object]", child).copy().values()
                below += [numbers[key] for value in values if (key := id(value)) in numbers]
        if buffers:
            # Also ``bytes``, which `referents_of` leaves out.
            below += [buffers[id(child)] for child in gc.get_referents(thing) if id(child) in buffers]
        return below

    def add_roots(self, keys: Iterable[int]) -> None:
        """Add edges from the root to some objects that libraries refer to, by ``id``."""
        numbers = [self._numbers[key] for key in keys if key in self._numbers]
        self._variables.update(numbers)
        self.successors[0] = list({*self.successors[0], *numbers})

    def is_of_one_variable(self, node: int, tree: Dominators) -> bool:
        """Return whether nothing but one variable refers to an object."""
        return tree.holders[node] == 0 and self._variables[node] <= 1

    def holders_of(self, identity: Hashable) -> tuple[list[int], set[int]]:
        """Return the objects that hold a storage, and those that variables refer to directly.

        Tensors, graphs and models that have the storage are not among the first, but what holds
        them; the second are such parts, or the storage itself.
        """
        referrers: dict[int, list[int]] = {}
        for number, below in enumerate(self.successors):
            for child in below:
                referrers.setdefault(child, []).append(number)
        pending = deque([self.storages[identity]])
        reached = {0, *pending}
        holders: list[int] = []
        of_variables: set[int] = set()
        while pending:
            number = pending.popleft()
            for above in referrers.get(number, ()):
                if not above:
                    of_variables.add(number)
                if above in reached:
                    continue
                reached.add(above)
                (pending if self._is_part(above, referrers) else holders).append(above)
        return holders, of_variables

    def variables_of(self, nodes: Container[int]) -> list[str]:
        """Return how code reaches the variables that refer to some objects."""
        return [
            origin.text
            for group in user_roots()
            for origin, thing in group
            if self._numbers.get(id(thing), UNREACHED) in nodes
        ]

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
        is_asked = bytearray(len(self.objects))
        for number, weight in enumerate(self.weights(tree)):
            # Not nodes of autograd graphs: C++ refers to them.
            if weight and tree.above[number] > 0 and not is_node_of_autograd(self.objects[number]):
                is_asked[number] = 1
        unexplained = [0] * len(self.objects)
        for key, number in self._numbers.items():
            # The search passes over buffers.
            if is_asked[number] and key in search.seen:
                is_in_objects = self.objects[number] is not None
                unexplained[number] += _references(search.seen, key) - _OF_THE_SEARCH - is_in_objects
        for below in islice(self.successors, 1, None):
            for number in below:
                unexplained[number] -= 1
        left = {number for number, references in enumerate(unexplained) if references > 0 and is_asked[number]}
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


def is_node_of_autograd(thing: object) -> bool:
    """Return whether an object is a node of an autograd graph."""
    known = framework_of(class_of(thing))
    return known is not None and known.part == "node"


def _references(things: Mapping[int, object], key: int) -> int:
    return sys.getrefcount(things[key])


_OF_THE_SEARCH: Final = _references({0: object()}, 0)
"""What `_references` returns for an object that only the dict refers to."""
