"""The search for holders: one walk forward from all roots, and one for reference cycles."""

from __future__ import annotations

import gc
import time
import types
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, final

from ...scopes.identity import Entry
from ..births.log import Subject
from .paths import WAYS_KEPT, Link, Ways, called, spelled, steps
from .references import (
    CLASS,
    EDGES_PLAIN,
    FRAMEWORKS,
    HIDDEN_TYPES,
    IN_GRAPH,
    SKIPPED,
    Framework,
    Memory,
    Part,
    action_of,
    class_of,
    framework_of,
    is_module,
    is_namespace,
    references_to,
    referents_of,
)
from .roots import Root, count_names, is_library_class

__all__ = [
    "Cycle",
    "Search",
    "cycle_around",
    "tensors_with_memory",
]

# The search for holders: one walk forward from all roots, which tells by what everything that is
# wanted is held.
#
# Forward, because arrays and the dicts and tuples that hold only such are unknown to
# ``gc.get_referrers``. What is held in several ways is told by the plainest: a tensor that a list
# holds as well as a graph is the list's. So the walk has storeys, each of which is walked to its
# end before the next: what variables lead to, what only suspended generators and coroutines hold,
# what only exceptions hold, what only graphs hold.


_LOOK_AT_CLOCK: Final = 512
_AFTER_THE_LAST_S: Final = 0.5
_OTHERS: Final = 10_000
_PINNED_TIMES: Final = 2


_Kind = tuple[int, tuple[Framework, Part] | None]
"""What a search does with the instances of a type, and the framework that knows them."""


@final
class Search:
    """One search.

    It holds what it has met, so that no address comes back under it, and lets go when it is closed.

    Attributes
    ----------
    storeys : dict
        For what has been found, where: one of the actions of `references`.
    at : dict
        For memory that was found in the first storey at a tensor that refers to nothing else, the
        ``id`` of the tensor.
    stopped : bool
        Whether the search ended at a limit.
    used : dict
        Of the storages that were asked for, the bytes that the objects which were met use; each
        object counts, but for those that only a view of theirs holds.
    cut_short : bool
        Whether the search ended before all that variables lead to was met.
    ways : Ways
        How it came to what has been found.
    """

    def __init__(
        self, subjects: Iterable[Subject], deadline: float, object_limit: int, sizes: dict[Hashable, int]
    ) -> None:
        self.deadline = deadline
        self.object_limit = object_limit
        self.stopped = False
        self.storeys: dict[Subject, int] = {}
        self.at: dict[Subject, int] = {}
        self.used: dict[Hashable, int] = {}
        self.cut_short = False
        # The tensors that were met as the base of a view only.
        self._bases: set[int] = set()
        self._sizes = sizes
        self._patience = deadline
        self._overtime = 0.0
        self._wanted: dict[int, Entry] = {}
        self._wanted_memory: dict[Hashable, tuple[Subject, ...]] = {}
        self._found: dict[int, Entry] = {}
        for subject in subjects:
            if subject() is None:
                continue
            if not isinstance(subject, Entry):
                those = self._wanted_memory.get(subject.identity)
                self._wanted_memory[subject.identity] = (subject,) if those is None else (*those, subject)
            else:
                self._wanted[subject.key] = subject
        self._met: dict[int, object] = {}
        # For each object met, the one that led to it, or how a root is written.
        self._links: dict[int, int | str] = {}
        self._others: dict[Subject, list[Link]] = {}
        self.ways = Ways(self._met, self._links, self._others, self.at)
        self._named: dict[Entry, str] = {}
        self._nodes: dict[int, Any] = {}
        self._node_edges: dict[int, list[int]] = {}
        # By type what `_meet` tells, and by its id whether a class is a library's: asked for each
        # object.
        self._kinds: dict[type, _Kind] = {}
        self._of_libraries: dict[int, tuple[object, bool]] = {}
        self._pending: tuple[deque[object], ...] = tuple(deque() for _ in range(IN_GRAPH + 1))
        self._quiet = ExitStack()
        for framework in FRAMEWORKS:
            self._quiet.enter_context(framework.quiet())

    def close(self) -> None:
        """Let go of everything, having made sure that the graphs that were walked can be released."""
        nodes = self._nodes
        if nodes:
            edges = {key: [child for child in below if child in nodes] for key, below in self._node_edges.items()}
            for framework in FRAMEWORKS:
                framework.walked(nodes, edges)
        self._quiet.close()
        self._node_edges.clear()
        self._nodes = nodes = {}
        self._found.clear()
        self._links.clear()
        self._met.clear()
        self._kinds.clear()
        self._of_libraries.clear()
        self._clear()

    @property
    def left(self) -> list[Subject]:
        """What has not been found."""
        return [*self._wanted.values(), *(subject for those in self._wanted_memory.values() for subject in those)]

    @property
    def ours(self) -> dict[int, object]:
        """What the search holds: no holder."""
        return self._met

    def settle(self, subject: Subject) -> None:
        """Look no longer for something."""
        if not isinstance(subject, Entry):
            self._wanted_memory.pop(subject.identity, None)
        else:
            self._wanted.pop(subject.key, None)

    # ------------------------------------------------------------------ the walk

    def from_roots(self, roots: Iterable[Root], *, libraries: bool) -> None:
        """Search everything that is reached from some roots, until all is found or a limit is met."""
        thing: object = None
        for name, thing in roots:
            key = id(thing)
            entry = self._wanted.get(key)
            if entry is not None and entry() is thing:
                # A variable may be a passer-by: it is the answer where nothing else holds.
                self._named.setdefault(entry, name)
                continue
            action = action_of(class_of(thing))
            if action == SKIPPED or (action == CLASS and not libraries and is_library_class(thing)):
                continue
            if key not in self._met:
                self._met[key] = thing
                self._links[key] = name
                self._pending[max(action, EDGES_PLAIN)].append(thing)
        thing = None
        self._settle_only_names()
        for storey, pending in enumerate(self._pending):
            if storey == IN_GRAPH and pending:
                self._want_what_graphs_saved()
            self._walk(storey, pending, libraries)
            if storey == EDGES_PLAIN and self._named:
                self._settle_names()
                self._walk(storey, pending, libraries)

    def _walk(self, storey: int, pending: deque[object], libraries: bool) -> None:
        met, links, wanted, found, kinds = self._met, self._links, self._wanted, self._found, self._kinds
        wanted_memory, sizes, at = self._wanted_memory, self._sizes, self.at
        graph = storey == IN_GRAPH
        plain = storey == EDGES_PLAIN and not libraries
        self._overtime = 0.0
        steps = 0
        while pending:
            node = pending.popleft()
            steps += 1
            if (steps % _LOOK_AT_CLOCK == 0 or len(met) > self.object_limit) and self._is_late(storey):
                return
            parent = id(node)
            known = (kinds.get(class_of(node)) or self._meet(class_of(node)))[1]
            below: list[int] | None = None
            children: Sequence[object]
            if known is None:
                children = referents_of(node)
            elif storey == EDGES_PLAIN and known[1] == "tensor" and (identity := known[0].alone(node)) is not None:
                self._note_alone(node, identity, known[0])
                children = (class_of(node),)
            else:
                if self._wanted_memory or self._sizes:
                    counts = parent not in self._bases and not graph
                    self._note_memory(node, known[0].memory(node), counts, storey)
                if graph and known[1] == "node":
                    self._nodes[parent] = node
                    self._node_edges[parent] = below = []
                children = referents_of(node)
            for child in children:
                # This loop is all that a search is.
                action, its_framework = kinds.get(type(child)) or self._meet(type(child))
                if action == SKIPPED:
                    continue
                key = id(child)
                if below is not None and action == IN_GRAPH:
                    below.append(key)
                if key in wanted and wanted[key]() is child:
                    entry = found[key] = wanted.pop(key)
                    self.storeys[entry] = storey
                elif key in met:
                    if key in self._bases and known is None:
                        self._bases.discard(key)
                        self._count_use(child)
                    if key in found:
                        self._add_other(found[key], parent, "", storey)
                    continue
                elif action == CLASS and not libraries and self._is_library_class(child):
                    continue
                links[key] = parent
                met[key] = child
                if known is not None and its_framework == known:
                    self._bases.add(key)
                if its_framework is not None and plain and its_framework[1] == "tensor":
                    identity = its_framework[0].alone(child)
                    if identity is not None:
                        # There is nothing more to see: of a million in one list this is done a
                        # million times.
                        for subject in wanted_memory.pop(identity, ()):
                            at[subject] = key
                            if isinstance(subject, Entry):
                                wanted.pop(subject.key, None)
                        if sizes and identity in sizes:
                            self._note_alone(child, identity, its_framework[0])
                        steps += 1
                        if steps % _LOOK_AT_CLOCK == 0 and self._is_late(storey):
                            return
                        continue
                self._pending[action if action > storey else storey].append(child)

    def _is_late(self, storey: int) -> bool:
        """Whether the search has to end; then nothing is pending any more."""
        now = time.monotonic()
        late = now > self.deadline or len(self._met) > self.object_limit
        if self._wanted or self._wanted_memory:
            self.stopped = self.stopped or late
        elif not self._overtime:
            # All is found; what else holds it is told as far as that costs little. What views use
            # of a memory is known only when all of them have been met, and may take half of the
            # time that is left.
            self._overtime = now + _AFTER_THE_LAST_S
            self._patience = now + (self.deadline - now) / 2
        elif now > self._overtime:
            late = late or now > self._patience or not self._may_be_pinned()
        if late:
            self.cut_short = self.cut_short or storey == EDGES_PLAIN
            self._clear()
        return late

    def _meet(self, cls: type) -> _Kind:
        """What a search does with the instances of a type, and who knows more of them."""
        kind = self._kinds[cls] = action_of(cls), framework_of(cls)
        return kind

    def _is_library_class(self, cls: object) -> bool:
        known = self._of_libraries.get(id(cls))
        if known is None:
            self._of_libraries[id(cls)] = known = cls, is_library_class(cls)
        return known[1]

    def _note_memory(self, node: object, memory: Iterable[Memory], counts: bool, storey: int) -> None:
        for step, identity, used_nbytes in memory:
            if counts and identity in self._sizes:
                self.used[identity] = self.used.get(identity, 0) + used_nbytes
            for subject in self._wanted_memory.pop(identity, ()):
                self.storeys[subject] = storey
                self._others[subject] = [(id(node), step)]
                if isinstance(subject, Entry):
                    self._wanted.pop(subject.key, None)

    def _note_alone(self, tensor: object, identity: Hashable, framework: Framework) -> None:
        for subject in self._wanted_memory.pop(identity, ()):
            self.at[subject] = id(tensor)
            if isinstance(subject, Entry):
                self._wanted.pop(subject.key, None)
        if identity in self._sizes and id(tensor) not in self._bases:
            for _, _, used_nbytes in framework.memory(tensor):
                self.used[identity] = self.used.get(identity, 0) + used_nbytes

    def _may_be_pinned(self) -> bool:
        """Whether some storage would be told as pinned by a view, unless something else is met that uses it."""
        return any(self.used.get(identity, 0) < nbytes / _PINNED_TIMES for identity, nbytes in self._sizes.items())

    def _count_use(self, tensor: object) -> None:
        known = framework_of(class_of(tensor))
        if known is not None and self._sizes:
            for _, identity, used_nbytes in known[0].memory(tensor):
                if identity in self._sizes:
                    self.used[identity] = self.used.get(identity, 0) + used_nbytes

    def _add_other(self, entry: Subject, parent: int, step: str, storey: int) -> None:
        others = self._others.get(entry)
        if self.storeys[entry] != storey:
            return
        if others is None:
            if len(self._others) < _OTHERS:
                self._others[entry] = [(parent, step)]
        elif len(others) < WAYS_KEPT - 1 and (parent, step) not in others:
            others.append((parent, step))

    def _want_what_graphs_saved(self) -> None:
        """Look for tensors that no Python object holds by their storages from now on."""
        for entry in self._wanted.values():
            resource = entry()
            if resource is not None and framework_of(class_of(resource)) is not None:
                for identity, _ in entry.kind.storages(resource):
                    self._wanted_memory[identity] = (*self._wanted_memory.get(identity, ()), entry)

    def _settle_only_names(self) -> None:
        """Take the variables that are the only holders for that."""
        names = count_names({entry.key for entry in self._named})
        for entry in list(self._named):
            if references_to(entry) == names.get(entry.key, 0):
                self._settle_name(entry)

    def _settle_names(self) -> None:
        """Take a variable for the holder of what nothing else was found to hold."""
        for entry in list(self._named):
            self._settle_name(entry)

    def _settle_name(self, entry: Entry) -> None:
        name = self._named.pop(entry)
        thing = entry()
        if thing is not None and self._wanted.pop(entry.key, None) is not None:
            self._found[entry.key] = entry
            self.storeys[entry] = EDGES_PLAIN
            self._met[entry.key] = thing
            self._links[entry.key] = name
            self._pending[EDGES_PLAIN].append(thing)

    def _clear(self) -> None:
        for pending in self._pending:
            pending.clear()


# Reference cycles: what keeps a resource that nothing else leads to, until the garbage collector
# runs.


_ANCESTOR_LIMIT: Final = 2_000
_LOOK_AT_CLOCK_IN_CYCLES: Final = 4_096
_SILENT: Final = frozenset({dict, tuple, list, set, types.CellType, types.MethodType})


@final
@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle that nothing leads to.

    Attributes
    ----------
    loop : str
        Its members, by types and attributes.
    hold : str
        How the first member leads to what is kept; empty where it is what is kept.
    collectable : bool
        Whether the garbage collector frees it: not where it leads through a graph.
    """

    loop: str
    hold: str
    collectable: bool

    def __str__(self) -> str:
        held = f", holds {self.hold}" if self.hold else ""
        end = "until the next gc.collect()" if self.collectable else "never collected, because it leads through a graph"
        return f"cycle: {self.loop}{held}, {end}"


def cycle_around(target: object, deadline: float, ours: object) -> Cycle | None:
    """The cycle that keeps a resource; None where there is none.

    Parameters
    ----------
    target : object
        What was not found from any root of the user's.
    deadline : float
        When to give up, on the monotonic clock.
    ours : object
        A container that is no holder.
    """
    ancestors = _ancestors_of(target, deadline, ours)
    if ancestors is None:
        return None
    members = [target, *ancestors]
    island = {id(member) for member in members}
    for member in members:
        if time.monotonic() > deadline:
            return None
        loop = _path(member, member, island)
        if loop is not None:
            first = next((index for index, thing in enumerate(loop) if type(thing) not in _SILENT), 0)
            loop = [*loop[first:-1], *loop[: first + 1]]
            hold = None if loop[0] is target else _path(loop[0], target, island)
            held = "" if hold is None else spelled(hold, "").removeprefix(", ")
            collectable = all(action_of(class_of(thing)) != IN_GRAPH for thing in loop)
            return Cycle(_spelled_loop(loop), held, collectable)
    return None


def tensors_with_memory(
    identities: Collection[Hashable], met: dict[int, object], deadline: float
) -> dict[Hashable, int]:
    """For each of some storages, the ``id`` of a tensor that has it, among those that no search has met.

    Parameters
    ----------
    identities : collection of hashable
        The storages, as `Framework.memory` tells them.
    met : dict
        What was met, by ``id``; the tensors are put there too, which keeps them.
    deadline : float
        When to give up, on the monotonic clock.
    """
    found: dict[Hashable, int] = {}
    thing: Any = None
    child: Any = None
    for count, thing in enumerate(gc.get_objects()):
        if count % _LOOK_AT_CLOCK_IN_CYCLES == 0 and (time.monotonic() > deadline or len(found) == len(identities)):
            break
        if id(thing) in met or type(thing) in HIDDEN_TYPES:
            continue
        # Arrays are in no list of the garbage collector's, but what holds them is.
        for child in (thing, *gc.get_referents(thing)):
            known = framework_of(type(child))
            if known is None or known[1] != "tensor" or id(child) in met:
                continue
            for _, identity, _ in known[0].memory(child):
                if identity in identities and identity not in found:
                    found[identity] = id(child)
                    met[id(child)] = child
    return found


def _ancestors_of(target: object, deadline: float, ours: object) -> list[object] | None:
    """All that leads to an object, nearest first; None where that is no island, and so no garbage."""
    ancestors: list[object] = []
    met = {id(target)}
    frontier: tuple[object, ...] = (target,)
    while frontier:
        if time.monotonic() > deadline or len(ancestors) > _ANCESTOR_LIMIT:
            return None
        nearest: list[object] = []
        referrers = gc.get_referrers(*frontier)
        for referrer in referrers:
            if referrer is ancestors or referrer is nearest or referrer is frontier or referrer is ours:
                continue
            if id(referrer) in met:
                continue
            if type(referrer) in HIDDEN_TYPES:
                continue
            if _is_root(referrer):
                return None
            met.add(id(referrer))
            nearest.append(referrer)
        del referrers
        ancestors += nearest
        frontier = tuple(nearest)
    return ancestors


def _is_root(thing: object) -> bool:
    """Whether an object leads everywhere: the garbage collector would not free what it holds."""
    return is_module(thing) or issubclass(type(thing), type) or (is_namespace(thing))


def _path(start: object, goal: object, island: set[int]) -> list[object] | None:
    """The shortest chain from one object to another, or round to itself, among some objects; None if there is none."""
    links: dict[int, object] = {}
    pending = deque([start])
    while pending:
        node = pending.popleft()
        for child in referents_of(node):
            if child is goal:
                chain = [child, node]
                while node is not start:
                    node = links[id(node)]
                    chain.append(node)
                return chain[::-1]
            if id(child) in island and id(child) not in links and child is not start:
                links[id(child)] = node
                pending.append(child)
    return None


def _spelled_loop(loop: list[object]) -> str:
    text = called(loop[0])
    for step, thing in zip(steps(loop), loop[1:], strict=True):
        text += step
        if type(thing) not in _SILENT or thing is loop[0]:
            text += f" -> {called(thing)}"
    return text
