"""The search for holders: a walk forward from all roots, and a search for reference cycles."""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast, final

from ...scopes.compiled import referents, tracked_objects
from ...scopes.framework import FRAMEWORKS, Framework, HeldMemory
from ...scopes.identity import Entry
from ...scopes.tree_walk import instance_dict_of
from ..births.log import Subject
from ..report.leaks import KnownLeak
from .known import is_cycle_of_library, known_on
from .origins import Origin
from .paths import ALL_WAYS_KEPT, WAYS_KEPT, Link, Ways, chain_as_code, display_name_of, steps
from .references import (
    CLASS,
    EDGES_PLAIN,
    HIDDEN_TYPES,
    IN_GRAPH,
    SKIPPED,
    SUSPENDED,
    KnownPart,
    action_of,
    bases_of,
    class_of,
    framework_of,
    hide_types,
    is_module,
    is_namespace,
    references_to,
    referents_of,
)
from .roots import Root, count_names, is_library_class

__all__ = [
    "Allowance",
    "Cycle",
    "Garbage",
    "POSSIBLY_PINNED_TIMES",
    "REPEATED",
    "Search",
]

# The search for holders is a walk forward from all roots that finds what holds each subject.
#
# It walks forward because ``gc.get_referrers`` knows neither arrays nor the dicts and tuples that
# hold only arrays. If a subject is held in several ways, the plainest is reported: a tensor that a
# list and a graph hold is held by the list. So the walk has stages, each of which ends before the
# next begins: what variables lead to, what only suspended generators and coroutines hold, what only
# exceptions hold, what only graphs hold.
#
# Its limits count objects and references, and no clock is read: what is found never depends on how
# busy the machine is.


REFERENCES_PER_OBJECT: Final = 10
"""A search looks at so many references for each object of its limit: lists of numbers have many."""

_EXTRA_OBJECTS: Final = 100_000
"""A search goes on for so many objects when everything is found, to find further holders."""

_SUBJECTS_WITH_OTHER_WAYS: Final = 10_000
"""Further ways are kept for so many subjects at most: a report shows few of millions."""

POSSIBLY_PINNED_TIMES: Final = 2
"""Views that keep more than so many times the bytes that they use are possible leaks."""


_Treatment = tuple[int, KnownPart | None]
"""What a search does with the instances of a type (`action_of`), and its `framework_of`."""


@final
class Search:
    """One search for holders.

    It refers to every object that it has reached, so that no ``id`` is used twice while it lasts.
    `close` drops these references.

    Parameters
    ----------
    subjects : iterable of Subject
        What to look for.
    object_limit : int
        How many objects are reached at most.
    sizes : dict
        Storages with their bytes, for `used`.
    opaque : container of int
        The ``id`` of objects that are not looked into.
    finds_all : bool, default False
        Whether further holders of memory are looked for when one was found.
    meets_all : bool, default False
        Whether everything that variables lead to is reached, also when all subjects are found.
    asked : collection of Subject, optional
        Memory of which further holders are kept too. There may be a million subjects.

    Attributes
    ----------
    stages : dict
        For each subject that was found, the stage: one of the actions of `references`.
    lone_tensors : dict
        For memory that was found in the first stage at a tensor that refers to nothing else, the
        ``id`` of the tensor. It has no entry in `stages`.
    stopped : bool
        Whether the search ended at its limit before it had found everything.
    used : dict
        For each storage in `sizes`, the bytes that the objects which were reached use. A tensor
        that only a view of it refers to does not count.
    cut_short : bool
        Whether the search ended before everything that variables lead to was reached.
    may_be_pinned : bool
        Whether the search ended at its limit while the known users of a storage in `sizes` used
        only a small part of it.
    reach : int
        How many objects of `seen`, in its order, had been reached when the last walk ended that
        found something.
    has_asked_libraries : bool
        Whether a walk began at the variables of libraries.
    library_referents : set of int
        With `meets_all`: the objects, by ``id``, that had been reached before and that libraries
        refer to.
    ways : Ways
        The ways by which it reached what has been found.
    """

    def __init__(
        self,
        subjects: Iterable[Subject],
        object_limit: int,
        sizes: dict[Hashable, int],
        *,
        opaque: Container[int] = (),
        finds_all: bool = False,
        meets_all: bool = False,
        asked: Collection[Subject] = (),
    ) -> None:
        self.object_limit = object_limit
        self.stopped = False
        self.stages: dict[Subject, int] = {}
        self.lone_tensors: dict[Subject, int] = {}
        self.used: dict[Hashable, int] = {}
        self.cut_short = False
        # The tensors, by ``id``, that were reached only as the base of a view.
        self._bases: set[int] = set()
        self.may_be_pinned = False
        self._sizes = sizes
        self._opaque = opaque
        self._finds_all = finds_all
        self._meets_all = meets_all
        # How many references were looked at.
        self._looked_at = 0
        # How many objects this walk reaches at most: fewer than the limit once everything is found.
        self._bound = object_limit
        self._wanted: dict[int, Entry] = {}
        self._wanted_memory: dict[Hashable, tuple[Subject, ...]] = {}
        self._asked_memory: dict[Hashable, list[Subject]] = {}
        for subject in asked:
            if not isinstance(subject, Entry):
                self._asked_memory.setdefault(subject.identity, []).append(subject)
        self._found: dict[int, Subject] = {}
        for subject in subjects:
            if subject() is None:
                continue
            if not isinstance(subject, Entry):
                same_memory = self._wanted_memory.get(subject.identity)
                self._wanted_memory[subject.identity] = (subject,) if same_memory is None else (*same_memory, subject)
            else:
                self._wanted[subject.key] = subject
        self._seen: dict[int, object] = {}
        self.reach = 0
        self.has_asked_libraries = False
        self.library_referents: set[int] = set()
        # For each object in `_seen`, the ``id`` of the object before it, or the origin of a root.
        self._links: dict[int, int | Origin] = {}
        self._other_ways: dict[Subject, list[Link]] = {}
        self.ways = Ways(
            self._seen,
            self._links,
            self._other_ways,
            self.lone_tensors,
            self._found,
            kept=ALL_WAYS_KEPT if finds_all else WAYS_KEPT,
        )
        # Subjects that a variable refers to, with the variable: they are not settled before it is
        # known that nothing else holds them.
        self._variables: dict[Entry, Origin] = {}
        # The nodes of graphs that were walked, and the nodes that each refers to, by ``id``.
        self._nodes: dict[int, Any] = {}
        self._node_edges: dict[int, list[int]] = {}
        # Caches of `_treatment_of` by type, and of `is_library_class` by the ``id`` of the class
        # (with the class, which keeps its ``id``): both are asked for each object.
        self._treatments: dict[type, _Treatment] = {}
        self._library_classes: dict[int, tuple[object, bool]] = {}
        # The objects to look into, by the stage that does so.
        self._pending: tuple[deque[object], ...] = tuple(deque() for _ in range(IN_GRAPH + 1))
        self._quiet = ExitStack()
        for framework in FRAMEWORKS.with_own("quiet"):
            self._quiet.enter_context(framework.quiet())

    def close(self) -> None:
        """Drop all references, after the frameworks were told which nodes of graphs were walked."""
        nodes = self._nodes
        if nodes:
            edges = {key: [child for child in children if child in nodes] for key, children in self._node_edges.items()}
            for framework in FRAMEWORKS.with_own("graph_walked"):
                framework.graph_walked(nodes, edges)
        self._node_edges.clear()
        self._nodes = nodes = {}
        self._found.clear()
        self._links.clear()
        self._seen.clear()
        self._treatments.clear()
        self._library_classes.clear()
        self._drop_pending()
        self._quiet.close()

    @property
    def left(self) -> list[Subject]:
        """Return the subjects that have not been found."""
        memory = (subject for same_memory in self._wanted_memory.values() for subject in same_memory)
        return [*self._wanted.values(), *memory]

    @property
    def seen(self) -> dict[int, object]:
        """Return the objects that the search has reached, by ``id``; not a copy."""
        return self._seen

    def settle(self, subject: Subject) -> None:
        """Stop looking for a subject."""
        if not isinstance(subject, Entry):
            self._wanted_memory.pop(subject.identity, None)
        else:
            self._wanted.pop(subject.key, None)

    # ------------------------------------------------------------------ the walk

    def from_roots(self, *groups: Iterable[Root], libraries: bool) -> None:
        """Search everything that some roots reach, until everything is found or at the limit.

        Where several groups of roots reach an object by plain references, its way begins in the
        first of these groups.
        """
        self.has_asked_libraries = self.has_asked_libraries or libraries
        left = len(self._wanted) + len(self._wanted_memory)
        for roots in groups:
            self._add_roots(roots, libraries)
            self._settle_sole_variables()
            self._walk(EDGES_PLAIN, self._pending[EDGES_PLAIN], libraries)
        for stage, pending in enumerate(self._pending):
            if stage == IN_GRAPH and pending:
                self._want_what_graphs_saved()
            self._walk(stage, pending, libraries)
            if stage == EDGES_PLAIN and self._variables:
                self._settle_variables()
                self._walk(stage, pending, libraries)
        if len(self._wanted) + len(self._wanted_memory) < left:
            self.reach = len(self._seen)

    def _add_roots(self, roots: Iterable[Root], libraries: bool) -> None:
        thing: object = None
        for origin, thing in roots:
            key = id(thing)
            entry = self._wanted.get(key)
            if entry is not None and entry() is thing:
                # A variable counts as a holder only if nothing else holds the subject.
                self._variables.setdefault(entry, origin)
                continue
            action = action_of(class_of(thing))
            if action == SKIPPED or (action == CLASS and not libraries and is_library_class(thing)):
                continue
            if key not in self._seen:
                self._seen[key] = thing
                self._links[key] = origin
                self._pending[max(action, EDGES_PLAIN)].append(thing)
            elif key in self._bases:
                self._bases.discard(key)
                self._count_use(thing)

    def _walk(self, stage: int, pending: deque[object], libraries: bool) -> None:
        seen, links, wanted, found, treatments = self._seen, self._links, self._wanted, self._found, self._treatments
        wanted_memory, sizes, lone_tensors = self._wanted_memory, self._sizes, self.lone_tensors
        asked_memory = self._asked_memory
        is_graph = stage == IN_GRAPH
        skips_lone_tensors = stage == EDGES_PLAIN and not libraries and not self._finds_all
        looked_at = self._looked_at
        self._bound = bound = self.object_limit
        all_found = False
        meets_all = (self._meets_all or self._finds_all) and stage == EDGES_PLAIN
        library_referents = self.library_referents if self._meets_all and libraries else None
        while pending:
            node = pending.popleft()
            if not (all_found or wanted or wanted_memory or meets_all):
                # Everything is found: look for further holders only a little further.
                all_found = True
                self._bound = bound = min(bound, max(len(seen), looked_at // REFERENCES_PER_OBJECT) + _EXTRA_OBJECTS)
            if (len(seen) > bound or looked_at > bound * REFERENCES_PER_OBJECT) and self._ends(stage, libraries):
                self._looked_at = looked_at
                return
            bound = self._bound
            parent = id(node)
            if parent in self._opaque:
                continue
            _, known = treatments.get(class_of(node)) or self._treatment_of(class_of(node))
            node_edges: list[int] | None = None
            children: Sequence[object]
            if known is None:
                children = referents_of(node)
            elif (
                stage == EDGES_PLAIN
                and known.part == "tensor"
                and not self._finds_all
                and (identity := known.framework.lone_storage(node)) is not None
            ):
                self._note_lone_tensor(node, identity, known.framework)
                if identity in asked_memory:
                    self._note_asked(parent, identity, "", stage)
                children = (class_of(node),)
            else:
                if self._wanted_memory or self._sizes or asked_memory:
                    counts = parent not in self._bases and not is_graph
                    self._note_memory(node, known.framework.memory_of(node), counts, stage)
                if is_graph and known.part == "node":
                    self._nodes[parent] = node
                    self._node_edges[parent] = node_edges = []
                children = referents_of(node)
            looked_at += 1 + len(children)
            for child in children:
                # A search spends nearly all of its time in this loop.
                action, child_known = treatments.get(type(child)) or self._treatment_of(type(child))
                if action == SKIPPED:
                    continue
                key = id(child)
                if node_edges is not None and action == IN_GRAPH:
                    node_edges.append(key)
                if key in wanted and wanted[key]() is child:
                    entry = found[key] = wanted.pop(key)
                    self.stages[entry] = stage
                elif key in seen:
                    if library_referents is not None:
                        library_referents.add(key)
                    if key in self._bases and (known is None or known.part == "module"):
                        self._bases.discard(key)
                        self._count_use(child)
                    asks = self._finds_all or (asked_memory and key not in found)
                    if asks and child_known is not None and child_known.part == "tensor":
                        self._note_memory(child, child_known.framework.memory_of(child), False, stage)
                    if key in found and (self._finds_all or known is None or known.part != "tensor"):
                        self._add_way(found[key], (parent, key), stage)
                    continue
                elif action == CLASS and not libraries and self._is_library_class(child):
                    continue
                links[key] = parent
                seen[key] = child
                if known is not None and child_known is not None and child_known.part == known.part:
                    # Also a tensor behind the array that its ``numpy()`` returned.
                    self._bases.add(key)
                if child_known is not None and skips_lone_tensors and child_known.part == "tensor":
                    identity = child_known.framework.lone_storage(child)
                    if identity is not None:
                        # It leads nowhere, and is not put into the queue. This branch is taken a
                        # million times for a list of a million tensors.
                        for subject in wanted_memory.pop(identity, ()):
                            lone_tensors[subject] = key
                            if isinstance(subject, Entry):
                                wanted.pop(subject.key, None)
                        if identity in asked_memory:
                            self._note_asked(key, identity, "", stage)
                        if sizes and identity in sizes:
                            self._note_lone_tensor(child, identity, child_known.framework)
                        if len(seen) > bound:
                            if self._ends(stage, libraries):
                                self._looked_at = looked_at
                                return
                            bound = self._bound
                        continue
                self._pending[action if action > stage else stage].append(child)
        self._looked_at = looked_at

    def _ends(self, stage: int, libraries: bool) -> bool:
        """Return whether a walk at its bound has to end; if so, drop what is pending."""
        if not self._wanted and not self._wanted_memory and self._bound < self.object_limit and self._looks_pinned():
            # How many bytes of a storage are used is known only when all its users are reached.
            self._bound = self.object_limit
            return False
        self.stopped = self.stopped or bool(self._wanted or self._wanted_memory)
        self.cut_short = self.cut_short or (stage == EDGES_PLAIN and not libraries)
        self.may_be_pinned = self.may_be_pinned or (stage == EDGES_PLAIN and self._looks_pinned())
        self._drop_pending()
        return True

    def _treatment_of(self, cls: type) -> _Treatment:
        """Return what to do with the instances of a type, and remember it."""
        treatment = self._treatments[cls] = action_of(cls), framework_of(cls)
        return treatment

    def _is_library_class(self, cls: object) -> bool:
        known = self._library_classes.get(id(cls))
        if known is None:
            self._library_classes[id(cls)] = known = cls, is_library_class(cls)
        _, is_of_library = known
        return is_of_library

    def _note_memory(self, node: object, memory: Iterable[HeldMemory], counts: bool, stage: int) -> None:
        """Settle the subjects whose memory an object keeps, and count its use where it `counts`."""
        for step, identity, used_nbytes in memory:
            if counts and identity in self._sizes:
                self.used[identity] = self.used.get(identity, 0) + used_nbytes
            if self._finds_all and identity in self._wanted_memory:
                for subject in self._wanted_memory[identity]:
                    self.stages.setdefault(subject, stage)
                    ways = self._other_ways.setdefault(subject, [])
                    if (id(node), step) not in ways:
                        ways.append((id(node), step))
                    if not step:
                        self._found.setdefault(id(node), subject)
                continue
            for subject in self._wanted_memory.pop(identity, ()):
                self.stages[subject] = stage
                self._other_ways[subject] = [(id(node), step)]
                if isinstance(subject, Entry):
                    self._wanted.pop(subject.key, None)
            if identity in self._asked_memory:
                self._note_asked(id(node), identity, step, stage)

    def _note_lone_tensor(self, tensor: object, identity: Hashable, framework: Framework) -> None:
        """Settle the subjects whose storage a lone tensor uses, and count its use."""
        for subject in self._wanted_memory.pop(identity, ()):
            self.lone_tensors[subject] = id(tensor)
            if isinstance(subject, Entry):
                self._wanted.pop(subject.key, None)
        if identity in self._sizes and id(tensor) not in self._bases:
            for _, _, used_nbytes in framework.memory_of(tensor):
                self.used[identity] = self.used.get(identity, 0) + used_nbytes

    def _looks_pinned(self) -> bool:
        """Return whether the users found so far use only a small part of a storage in `sizes`."""
        return any(
            self.used.get(identity, 0) < nbytes / POSSIBLY_PINNED_TIMES for identity, nbytes in self._sizes.items()
        )

    def _count_use(self, tensor: object) -> None:
        known = framework_of(class_of(tensor))
        if known is not None and self._sizes:
            for _, identity, used_nbytes in known.framework.memory_of(tensor):
                if identity in self._sizes:
                    self.used[identity] = self.used.get(identity, 0) + used_nbytes

    def _note_asked(self, key: int, identity: Hashable, step: str, stage: int) -> None:
        """Add the way to an object, by ``id``, that has memory in `asked`."""
        for subject in self._asked_memory[identity]:
            if not step:
                self._found.setdefault(key, subject)
            if key not in self._bases:
                self._add_way(subject, (key, step), stage)

    def _add_way(self, subject: Subject, way: Link, stage: int) -> None:
        """Add a way to a subject, unless one is known that ends at the same holder."""
        if self.stages.get(subject, EDGES_PLAIN) != stage and not (self._finds_all and stage == SUSPENDED):
            # Where an earlier stage found a holder, holders of later stages are not reported.
            return
        ways = self._other_ways.get(subject, [])
        if len(ways) >= self.ways.kept or self._holder_on(way) in map(self._holder_on, ways):
            return
        first = subject.key if isinstance(subject, Entry) else self.lone_tensors.get(subject)
        if first in self._links and self._holder_on((first, "")) == self._holder_on(way):
            return
        if ways:
            ways.append(way)
        elif len(self._other_ways) < _SUBJECTS_WITH_OTHER_WAYS:
            self._other_ways[subject] = [way]

    def _holder_on(self, way: Link) -> int | Origin:
        """Return the last object on a way, by ``id``, that is not the subject; or its origin.

        A module and its dicts, such as that of its buffers, are one holder.
        """
        before, last = way
        holder = above = self._links[before] if isinstance(last, str) else before
        while not isinstance(above, Origin) and issubclass(class_of(self._seen[above]), dict):
            above = self._links[above]
        known = None if isinstance(above, Origin) else framework_of(class_of(self._seen[above]))
        return above if known is not None and known.part == "module" else holder

    def _want_what_graphs_saved(self) -> None:
        """Look for the tensors that are left by their storages too: a graph may have saved one."""
        for entry in self._wanted.values():
            resource = entry()
            known = None if resource is None else framework_of(class_of(resource))
            if known is not None and known.part == "tensor":
                for identity, _ in entry.kind.storages(resource):
                    self._wanted_memory[identity] = (*self._wanted_memory.get(identity, ()), entry)

    def _settle_sole_variables(self) -> None:
        """Accept variables as holders of subjects to which nothing but variables refers."""
        names = count_names({entry.key for entry in self._variables})
        for entry in list(self._variables):
            if references_to(entry) == names.get(entry.key, 0):
                self._settle_variable(entry)

    def _settle_variables(self) -> None:
        """Accept a variable as the holder of each subject for which no other holder was found."""
        for entry in list(self._variables):
            self._settle_variable(entry)

    def _settle_variable(self, entry: Entry) -> None:
        origin = self._variables.pop(entry)
        thing = entry()
        if thing is not None and self._wanted.pop(entry.key, None) is not None:
            self._found[entry.key] = entry
            self.stages[entry] = EDGES_PLAIN
            self._seen[entry.key] = thing
            self._links[entry.key] = origin
            self._pending[EDGES_PLAIN].append(thing)

    def _drop_pending(self) -> None:
        for pending in self._pending:
            pending.clear()


# The search for reference cycles. They keep a resource that no root leads to until the garbage
# collector runs.


REPEATED: Final = 3
"""From so many alike cycles on, the program makes one each time that it does something."""

_ANCESTOR_LIMIT: Final = 2_000
"""Where more objects than that lead to a resource, no cycle is looked for among them."""

_MEMBERS_SHOWN: Final = 8
"""Of a longer cycle so many members are shown, half of them at each end."""

_NOT_SHOWN: Final = frozenset({dict, tuple, list, set, types.CellType, types.MethodType})
"""Members of these types are not named: the steps into and out of them tell enough."""


@final
@dataclass(frozen=True, slots=True)
class Cycle:
    """A reference cycle that no root leads to.

    Attributes
    ----------
    loop : str
        Its members, by types and attributes.
    hold : str
        How the first member leads to the resource; empty where the resource is that member.
    collectable : bool
        Whether the garbage collector frees it: not where code of an extension, such as a graph,
        holds a member.
    known : KnownLeak or None
        The known leak of a library that the cycle is, or None.
    times : int
        How many such cycles were found that are not connected with one another, at most
        `REPEATED`.
    stays : bool
        Whether the program has turned the garbage collector off.
    is_of_library : bool
        Whether Python or a library makes such a cycle by design, for the garbage collector to free.
    """

    loop: str
    hold: str
    collectable: bool
    known: KnownLeak | None = None
    times: int = 1
    stays: bool = False
    is_of_library: bool = False

    def __str__(self) -> str:
        held = f", holds {self.hold}" if self.hold else ""
        end = (
            "until the next gc.collect()" if self.collectable else "never collected, because a graph holds a part of it"
        )
        return f"cycle: {self.loop}{held}, {end}"


@final
class Allowance:
    """How many objects and references the search for cycles may still look at.

    Attributes
    ----------
    is_spent : bool
        Whether it has been used up. An answer None of `Garbage` means then that nothing is known.
    """

    __slots__ = ("_left", "is_spent")

    def __init__(self, objects: int) -> None:
        self._left = objects
        self.is_spent = False

    def spend(self, objects: int) -> bool:
        """Count so many objects, and return whether they may still be looked at."""
        self._left -= objects
        self.is_spent = self.is_spent or self._left < 0
        return not self.is_spent


@final
class Garbage:
    """The objects that a search from all roots did not reach, and which of them refers to which.

    Parameters
    ----------
    seen : dict
        The objects that the search has reached, by ``id``.
    allowance : Allowance
        How much may be looked at.
    wanted : collection of hashable
        Identities of storages, as `Framework.memory_of` returns them.

    Attributes
    ----------
    tensors : dict
        For each of the wanted storages that was found, a tensor that uses it.
    """

    __slots__ = ("_allowance", "_objects", "_referrers", "tensors")

    def __init__(self, seen: dict[int, object], allowance: Allowance, wanted: Collection[Hashable] = ()) -> None:
        self._allowance = allowance
        self._objects: dict[int, object] = {}
        self._referrers: dict[int, list[int]] = {}
        self.tensors: dict[Hashable, object] = {}
        # Since Python 3.14 the collector tracks empty dicts too: leave out those of this search.
        own = {id(thing) for thing in (seen, self._objects, self._referrers, self.tensors)}
        # Objects that the collector does not track, such as arrays and tuples of them, are found
        # below from tracked objects that refer to them.
        # No comprehension: it would be a function with a closure over what was seen. And no list
        # for them before the objects are listed: it would be one of them.
        tracked = tracked_objects()
        pending: list[object] = []
        for thing in tracked:
            if id(thing) not in own and id(thing) not in seen and type(thing) not in HIDDEN_TYPES:
                pending.append(thing)
        del tracked
        while pending:
            thing = pending.pop()
            key = id(thing)
            if key in self._objects:
                continue
            self._objects[key] = thing
            known = framework_of(type(thing)) if wanted else None
            if known is not None and known.part != "node":
                for _, identity, _ in known.framework.memory_of(thing):
                    if identity in wanted:
                        self.tensors.setdefault(identity, thing)
            children = referents(thing)
            if not allowance.spend(1 + len(children)):
                return
            for child in children:
                if id(child) in seen or id(child) in own or type(child) in HIDDEN_TYPES:
                    continue
                self._referrers.setdefault(id(child), []).append(key)
                if id(child) not in self._objects:
                    pending.append(child)

    def cycle_around(self, target: object) -> Cycle | None:
        """Return the cycle that keeps an object; None if none is found within the allowance."""
        ancestors = self._ancestors_of(target)
        if ancestors is None:
            return None
        members = [target, *ancestors]
        # CPython makes the ``__dict__`` of an instance when somebody asks for it, as the code below
        # does that shows a chain. From then on the dict is between the instance and its attributes.
        island = {id(thing) for member in members for thing in (member, instance_dict_of(member)) if thing is not None}
        allowance = self._allowance

        def is_member(thing: object) -> bool:
            return id(thing) in island

        for member in members:
            loop = _path(member, member, is_member, allowance)
            if allowance.is_spent:
                return None
            if loop is not None:
                # Begin with a member that is shown.
                first = next((index for index, thing in enumerate(loop) if type(thing) not in _NOT_SHOWN), 0)
                loop = [*loop[first:-1], *loop[: first + 1]]
                to_target = None if loop[0] is target else _path(loop[0], target, is_member, allowance)
                hold = "" if to_target is None else chain_as_code(to_target, "").removeprefix(", ").lstrip()
                text = _loop_as_code(loop)
                known = known_on(loop, text)
                # `_is_collectable` counts references: one of a variable here would look like one of
                # an extension.
                del member
                # Every class is in a cycle with itself.
                is_class = issubclass(type(loop[0]), type) and len(loop) == 2
                by_design = is_class or is_cycle_of_library(loop, text)
                return Cycle(text, hold, self._is_collectable(loop), known, is_of_library=by_design)
        # The collector sees no references from C++. So a gradient whose graph leads back to its
        # parameter is not among the ancestors: look along the graph.
        loop = _path(target, target, _is_of_graph, allowance)
        if loop is None:
            return None
        text = f"{chain_as_code(loop, display_name_of(target))} -> {display_name_of(target)}"
        return Cycle(text, "", False, known_on(loop, text))

    def islands_of(self, targets: Iterable[object]) -> int:
        """Return in how many unconnected groups some objects are, at most `REPEATED`.

        An object with all that leads to it is an island. Only an island that has nothing in common
        with the earlier ones counts.
        """
        seen: set[int] = set()
        islands = 0
        for target in targets:
            ancestors = self._ancestors_of(target)
            if ancestors is None:
                continue
            island = {id(target), *map(id, ancestors)}
            islands += seen.isdisjoint(island)
            seen |= island
            if islands == REPEATED:
                break
        return islands

    def _ancestors_of(self, target: object) -> list[object] | None:
        """Return the objects that lead to an object, the nearest first.

        None where a root is among them, so that the object is no garbage; where there are more than
        `_ANCESTOR_LIMIT`; or where the allowance is spent.
        """
        if self._allowance.is_spent:
            return None
        ancestors: list[object] = []
        seen = {id(target)}
        pending = deque(seen)
        while pending:
            for key in self._referrers.get(pending.popleft(), ()):
                if key in seen:
                    continue
                if len(ancestors) == _ANCESTOR_LIMIT or _is_root(self._objects[key]):
                    return None
                seen.add(key)
                ancestors.append(self._objects[key])
                pending.append(key)
        return ancestors

    def _is_collectable(self, loop: Sequence[object]) -> bool:
        """Return whether the garbage collector frees a loop.

        It does where it sees every reference to a member. It sees what tensors, and nodes written
        in Python, refer to; it does not see what a node of C++ refers to, such as the hooks of its
        tensors.
        """
        if not any((known := framework_of(class_of(thing))) is not None and known.part != "module" for thing in loop):
            return True
        if not all(_collector_sees(thing, following) for thing, following in pairwise(loop)):
            return False
        # The hooks of a tensor are in an OrderedDict, to which a node of C++ may refer as well.
        for index, thing in enumerate(loop[:-1]):
            if class_of(thing) is not OrderedDict:
                continue
            # Its reference would count below.
            del thing
            seen_references = sum(
                sum(child is loop[index] for child in gc.get_referents(referrer))
                for referrer in gc.get_referrers(loop[index])
            )
            # One reference is the argument's.
            if sys.getrefcount(loop[index]) - 1 > seen_references:
                return False
        return True


hide_types(Garbage, Search)


def _is_of_graph(thing: object) -> bool:
    known = framework_of(class_of(thing))
    return known is not None and known.part in ("tensor", "node")


def _collector_sees(thing: object, following: object) -> bool:
    """Return whether the garbage collector sees that an object, or its dict, refers to another."""
    return any(
        child is following
        or (type(child) is dict and any(value is following for value in cast("dict[object, object]", child).values()))
        for child in gc.get_referents(thing)
    )


def _is_root(thing: object) -> bool:
    """Return whether an object is a module, or the globals of some code."""
    return is_module(thing) or is_namespace(thing)


def _path(
    start: object, goal: object, is_member: Callable[[object], bool], allowance: Allowance
) -> list[object] | None:
    """Return the shortest chain from an object to a goal, which may be itself, through members.

    None where there is none, or the allowance is spent.
    """
    links: dict[int, object] = {}
    # The Python object of a C++ node goes when nothing refers to it, and its ``id`` comes back.
    kept: list[object] = []
    pending = deque([start])
    while pending:
        node = pending.popleft()
        children: Sequence[object] = referents_of(node)
        if issubclass(type(node), type):
            # A class refers to itself and to its bases. A search for holders does not go that way.
            children = [*children, *bases_of(cast("type", node))]
        if not allowance.spend(len(children)):
            return None
        for child in children:
            if child is goal:
                chain = [child, node]
                while node is not start:
                    node = links[id(node)]
                    chain.append(node)
                return chain[::-1]
            if id(child) not in links and child is not start and is_member(child):
                links[id(child)] = node
                kept.append(child)
                pending.append(child)
    return None


def _loop_as_code(loop: list[object]) -> str:
    pieces = [display_name_of(loop[0])]
    for step, (parent, thing) in zip(steps(loop), pairwise(loop), strict=True):
        if type(parent) is types.FrameType:
            # The step begins with the word "frame", so drop the name of the type.
            pieces[-1] = pieces[-1].removesuffix("frame").removesuffix(" ")
        pieces[-1] += step
        if type(thing) not in _NOT_SHOWN or thing is loop[0]:
            pieces.append(display_name_of(thing))
    if len(pieces) > _MEMBERS_SHOWN:
        half = _MEMBERS_SHOWN // 2
        pieces = [*pieces[:half], f"… {len(pieces) - 2 * half} more …", *pieces[-half:]]
    return " -> ".join(pieces).removeprefix(" ")
