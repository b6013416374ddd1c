"""The search for holders: one walk forward from all roots, and a search for reference cycles."""

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
from ...scopes.framework import FRAMEWORKS, Framework, HeldMemory, Part
from ...scopes.identity import Entry
from ...scopes.tree_walk import instance_dict_of
from ..births.log import Subject
from ..report.leaks import KnownLeak
from .known import is_cycle_of_library, known_on
from .paths import ALL_WAYS_KEPT, WAYS_KEPT, Link, Ways, called, spelled, steps
from .references import (
    CLASS,
    EDGES_PLAIN,
    HIDDEN_TYPES,
    IN_GRAPH,
    SKIPPED,
    SUSPENDED,
    action_of,
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
    "Search",
]

# The search for holders is one walk forward from all roots that finds what holds each subject.
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
"""So many references are looked at for each object of the limit: lists of numbers have many."""

_AFTER_THE_LAST: Final = 100_000
_OTHERS: Final = 10_000
_PINNED_TIMES: Final = 2


_Kind = tuple[int, tuple[Framework, Part] | None]
"""What a search does with the instances of a type, and the framework that knows them."""


@final
class Search:
    """One search for holders.

    It holds what it has met, so that no address comes back under it, and lets go when it is closed.

    Attributes
    ----------
    stages : dict
        For what has been found, where: one of the actions of `references`.
    at : dict
        For memory that was found in the first stage at a tensor that refers to nothing else, the
        ``id`` of the tensor.
    stopped : bool
        Whether the search ended at its limit before it had found everything.
    used : dict
        Of the storages that were asked for, the bytes that the objects which were met use; each
        object counts, but for those that only a view of theirs holds.
    cut_short : bool
        Whether the search ended before all that variables lead to was met.
    may_be_pinned : bool
        Whether it then ended at its limit, while some of these storages had no other user than a
        small view.
    reach : int
        How many objects had been met, of `ours` in its order, when the last walk ended that found
        something.
    has_asked_libraries : bool
        Whether a walk began at the variables of libraries.
    of_libraries : set of int
        Where `meets_all`: what libraries refer to of what had been met before, by ``id``.
    ways : Ways
        How it came to what has been found.
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
    ) -> None:
        self.object_limit = object_limit
        self.stopped = False
        self.stages: dict[Subject, int] = {}
        self.at: dict[Subject, int] = {}
        self.used: dict[Hashable, int] = {}
        self.cut_short = False
        # The tensors that were met only as the base of a view.
        self._bases: set[int] = set()
        self.may_be_pinned = False
        self._sizes = sizes
        # What is not looked into; and whether further holders of memory are looked for.
        self._opaque = opaque
        self._finds_all = finds_all
        # Whether all that variables lead to is met, also when everything is found before.
        self._meets_all = meets_all
        # How many references were looked at, and how many objects are met at most in this walk:
        # fewer than the limit once everything is found.
        self._looked_at = 0
        self._bound = object_limit
        self._wanted: dict[int, Entry] = {}
        self._wanted_memory: dict[Hashable, tuple[Subject, ...]] = {}
        self._found: dict[int, Subject] = {}
        for subject in subjects:
            if subject() is None:
                continue
            if not isinstance(subject, Entry):
                those = self._wanted_memory.get(subject.identity)
                self._wanted_memory[subject.identity] = (subject,) if those is None else (*those, subject)
            else:
                self._wanted[subject.key] = subject
        self._met: dict[int, object] = {}
        self.reach = 0
        self.has_asked_libraries = False
        self.of_libraries: set[int] = set()
        # For each object met, the one that led to it, or the text of a root.
        self._links: dict[int, int | str] = {}
        self._others: dict[Subject, list[Link]] = {}
        self.ways = Ways(self._met, self._links, self._others, self.at, kept=ALL_WAYS_KEPT if finds_all else WAYS_KEPT)
        self._named: dict[Entry, str] = {}
        self._nodes: dict[int, Any] = {}
        self._node_edges: dict[int, list[int]] = {}
        # Results of `_meet` by type, and by id whether a class is a library's. Both are needed for
        # each object.
        self._kinds: dict[type, _Kind] = {}
        self._of_libraries: dict[int, tuple[object, bool]] = {}
        self._pending: tuple[deque[object], ...] = tuple(deque() for _ in range(IN_GRAPH + 1))
        self._quiet = ExitStack()
        for framework in FRAMEWORKS.with_own("quiet"):
            self._quiet.enter_context(framework.quiet())

    def close(self) -> None:
        """Drop all references, having made sure that the walked graphs can be released."""
        nodes = self._nodes
        if nodes:
            edges = {key: [child for child in below if child in nodes] for key, below in self._node_edges.items()}
            for framework in FRAMEWORKS.with_own("graph_walked"):
                framework.graph_walked(nodes, edges)
        self._node_edges.clear()
        self._nodes = nodes = {}
        self._found.clear()
        self._links.clear()
        self._met.clear()
        self._kinds.clear()
        self._of_libraries.clear()
        self._clear()
        self._quiet.close()

    @property
    def left(self) -> list[Subject]:
        """Return the subjects that have not been found."""
        return [*self._wanted.values(), *(subject for those in self._wanted_memory.values() for subject in those)]

    @property
    def ours(self) -> dict[int, object]:
        """Return the objects of the search itself, by ``id``; they are no holders."""
        return self._met

    def settle(self, subject: Subject) -> None:
        """Stop looking for a subject."""
        if not isinstance(subject, Entry):
            self._wanted_memory.pop(subject.identity, None)
        else:
            self._wanted.pop(subject.key, None)

    # ------------------------------------------------------------------ the walk

    def from_roots(self, *groups: Iterable[Root], libraries: bool) -> None:
        """Search everything that some roots reach, until all is found or a limit is met.

        Of what several groups of roots reach by plain references, the first has the name.
        """
        self.has_asked_libraries = self.has_asked_libraries or libraries
        left = len(self._wanted) + len(self._wanted_memory)
        plain = self._pending[EDGES_PLAIN]
        for roots in groups:
            self._add_roots(roots, libraries)
            self._settle_only_names()
            self._walk(EDGES_PLAIN, plain, libraries)
        for stage, pending in enumerate(self._pending):
            if stage == IN_GRAPH and pending:
                self._want_what_graphs_saved()
            self._walk(stage, pending, libraries)
            if stage == EDGES_PLAIN and self._named:
                self._settle_names()
                self._walk(stage, pending, libraries)
        if len(self._wanted) + len(self._wanted_memory) < left:
            self.reach = len(self._met)

    def _add_roots(self, roots: Iterable[Root], libraries: bool) -> None:
        thing: object = None
        for name, thing in roots:
            key = id(thing)
            entry = self._wanted.get(key)
            if entry is not None and entry() is thing:
                # A variable counts as a holder only if nothing else holds the subject.
                self._named.setdefault(entry, name)
                continue
            action = action_of(class_of(thing))
            if action == SKIPPED or (action == CLASS and not libraries and is_library_class(thing)):
                continue
            if key not in self._met:
                self._met[key] = thing
                self._links[key] = name
                self._pending[max(action, EDGES_PLAIN)].append(thing)
            elif key in self._bases:
                self._bases.discard(key)
                self._count_use(thing)

    def _walk(self, stage: int, pending: deque[object], libraries: bool) -> None:
        met, links, wanted, found, kinds = self._met, self._links, self._wanted, self._found, self._kinds
        wanted_memory, sizes, at = self._wanted_memory, self._sizes, self.at
        graph = stage == IN_GRAPH
        plain = stage == EDGES_PLAIN and not libraries and not self._finds_all
        looked_at = self._looked_at
        self._bound = bound = self.object_limit
        complete = False
        meets_all = (self._meets_all or self._finds_all) and stage == EDGES_PLAIN
        entered = self.of_libraries if self._meets_all and libraries else None
        while pending:
            node = pending.popleft()
            if not (complete or wanted or wanted_memory or meets_all):
                # Everything is found: look for further holders only a little further.
                complete = True
                self._bound = bound = min(bound, max(len(met), looked_at // REFERENCES_PER_OBJECT) + _AFTER_THE_LAST)
            if (len(met) > bound or looked_at > bound * REFERENCES_PER_OBJECT) and self._ends(stage, libraries):
                self._looked_at = looked_at
                return
            bound = self._bound
            parent = id(node)
            if parent in self._opaque:
                continue
            known = (kinds.get(class_of(node)) or self._meet(class_of(node)))[1]
            below: list[int] | None = None
            children: Sequence[object]
            if known is None:
                children = referents_of(node)
            elif (
                stage == EDGES_PLAIN
                and known[1] == "tensor"
                and not self._finds_all
                and (identity := known[0].lone_storage(node)) is not None
            ):
                self._note_lone(node, identity, known[0])
                children = (class_of(node),)
            else:
                if self._wanted_memory or self._sizes:
                    counts = parent not in self._bases and not graph
                    self._note_memory(node, known[0].memory_of(node), counts, stage)
                if graph and known[1] == "node":
                    self._nodes[parent] = node
                    self._node_edges[parent] = below = []
                children = referents_of(node)
            looked_at += 1 + len(children)
            for child in children:
                # A search spends all of its time in this loop.
                action, its_framework = kinds.get(type(child)) or self._meet(type(child))
                if action == SKIPPED:
                    continue
                key = id(child)
                if below is not None and action == IN_GRAPH:
                    below.append(key)
                if key in wanted and wanted[key]() is child:
                    entry = found[key] = wanted.pop(key)
                    self.stages[entry] = stage
                elif key in met:
                    if entered is not None:
                        entered.add(key)
                    if key in self._bases and (known is None or known[1] == "module"):
                        self._bases.discard(key)
                        self._count_use(child)
                    if self._finds_all and its_framework is not None and its_framework[1] == "tensor":
                        self._note_memory(child, its_framework[0].memory_of(child), False, stage)
                    if key in found:
                        self._add_other(found[key], parent, key, stage)
                    continue
                elif action == CLASS and not libraries and self._is_library_class(child):
                    continue
                links[key] = parent
                met[key] = child
                if known is not None and its_framework == known:
                    self._bases.add(key)
                if its_framework is not None and plain and its_framework[1] == "tensor":
                    identity = its_framework[0].lone_storage(child)
                    if identity is not None:
                        # Nothing is behind it. This branch is taken a million times for a million
                        # tensors in a list.
                        for subject in wanted_memory.pop(identity, ()):
                            at[subject] = key
                            if isinstance(subject, Entry):
                                wanted.pop(subject.key, None)
                        if sizes and identity in sizes:
                            self._note_lone(child, identity, its_framework[0])
                        if len(met) > bound:
                            if self._ends(stage, libraries):
                                self._looked_at = looked_at
                                return
                            bound = self._bound
                        continue
                self._pending[action if action > stage else stage].append(child)
        self._looked_at = looked_at

    def _ends(self, stage: int, libraries: bool) -> bool:
        """Return whether a walk that has met its bound has to end; if so, drop what is pending."""
        if not self._wanted and not self._wanted_memory and self._bound < self.object_limit and self._may_be_pinned():
            # The bytes that views use are known only when all views have been met.
            self._bound = self.object_limit
            return False
        self.stopped = self.stopped or bool(self._wanted or self._wanted_memory)
        self.cut_short = self.cut_short or (stage == EDGES_PLAIN and not libraries)
        self.may_be_pinned = self.may_be_pinned or (stage == EDGES_PLAIN and self._may_be_pinned())
        self._clear()
        return True

    def _meet(self, cls: type) -> _Kind:
        """Return how a search treats the instances of a type, and which framework knows them."""
        kind = self._kinds[cls] = action_of(cls), framework_of(cls)
        return kind

    def _is_library_class(self, cls: object) -> bool:
        known = self._of_libraries.get(id(cls))
        if known is None:
            self._of_libraries[id(cls)] = known = cls, is_library_class(cls)
        return known[1]

    def _note_memory(self, node: object, memory: Iterable[HeldMemory], counts: bool, stage: int) -> None:
        for step, identity, used_nbytes in memory:
            if counts and identity in self._sizes:
                self.used[identity] = self.used.get(identity, 0) + used_nbytes
            if self._finds_all and identity in self._wanted_memory:
                for subject in self._wanted_memory[identity]:
                    self.stages.setdefault(subject, stage)
                    ways = self._others.setdefault(subject, [])
                    if (id(node), step) not in ways:
                        ways.append((id(node), step))
                    if not step:
                        self._found.setdefault(id(node), subject)
                continue
            for subject in self._wanted_memory.pop(identity, ()):
                self.stages[subject] = stage
                self._others[subject] = [(id(node), step)]
                if isinstance(subject, Entry):
                    self._wanted.pop(subject.key, None)

    def _note_lone(self, tensor: object, identity: Hashable, framework: Framework) -> None:
        for subject in self._wanted_memory.pop(identity, ()):
            self.at[subject] = id(tensor)
            if isinstance(subject, Entry):
                self._wanted.pop(subject.key, None)
        if identity in self._sizes and id(tensor) not in self._bases:
            for _, _, used_nbytes in framework.memory_of(tensor):
                self.used[identity] = self.used.get(identity, 0) + used_nbytes

    def _may_be_pinned(self) -> bool:
        """Return whether a storage looks pinned by a view, as no other user was found yet."""
        return any(self.used.get(identity, 0) < nbytes / _PINNED_TIMES for identity, nbytes in self._sizes.items())

    def _count_use(self, tensor: object) -> None:
        known = framework_of(class_of(tensor))
        if known is not None and self._sizes:
            for _, identity, used_nbytes in known[0].memory_of(tensor):
                if identity in self._sizes:
                    self.used[identity] = self.used.get(identity, 0) + used_nbytes

    def _add_other(self, entry: Subject, parent: int, child: int, stage: int) -> None:
        others = self._others.get(entry)
        if self.stages[entry] != stage and not (self._finds_all and stage == SUSPENDED):
            # What a plainer holder has is not said to be held by others.
            return
        if others is None:
            if len(self._others) < _OTHERS:
                self._others[entry] = [(parent, child)]
        elif len(others) < self.ways.kept - 1 and (parent, child) not in others:
            others.append((parent, child))

    def _want_what_graphs_saved(self) -> None:
        """Begin to look, by their storages, for tensors that no Python object holds."""
        for entry in self._wanted.values():
            resource = entry()
            known = None if resource is None else framework_of(class_of(resource))
            if known is not None and known[1] == "tensor":
                for identity, _ in entry.kind.storages(resource):
                    self._wanted_memory[identity] = (*self._wanted_memory.get(identity, ()), entry)

    def _settle_only_names(self) -> None:
        """Accept variables as holders of subjects that only variables hold."""
        names = count_names({entry.key for entry in self._named})
        for entry in list(self._named):
            if references_to(entry) == names.get(entry.key, 0):
                self._settle_name(entry)

    def _settle_names(self) -> None:
        """Accept a variable as the holder of each subject for which no other holder was found."""
        for entry in list(self._named):
            self._settle_name(entry)

    def _settle_name(self, entry: Entry) -> None:
        name = self._named.pop(entry)
        thing = entry()
        if thing is not None and self._wanted.pop(entry.key, None) is not None:
            self._found[entry.key] = entry
            self.stages[entry] = EDGES_PLAIN
            self._met[entry.key] = thing
            self._links[entry.key] = name
            self._pending[EDGES_PLAIN].append(thing)

    def _clear(self) -> None:
        for pending in self._pending:
            pending.clear()


# Reference cycles keep a resource that no root leads to, until the garbage collector runs.


REPEATED: Final = 3
"""So many times is again and again."""
_ANCESTOR_LIMIT: Final = 2_000
_MEMBERS_SHOWN: Final = 8
_SILENT: Final = frozenset({dict, tuple, list, set, types.CellType, types.MethodType})


@final
@dataclass(frozen=True, slots=True)
class Cycle:
    """A reference cycle that no root leads to.

    Attributes
    ----------
    loop : str
        Its members, by types and attributes.
    hold : str
        How the first member leads to what is kept; empty where it is what is kept.
    collectable : bool
        Whether the garbage collector frees it: not where code of an extension, such as a graph,
        holds a member.
    known : KnownLeak or None
        The known leak of a library that it is, or None.
    times : int
        How many like it were found that have nothing to do with one another, at most
        `REPEATED`: what is done again and again leaves one each time.
    stays : bool
        Whether the program has turned the garbage collector off.
    is_of_library : bool
        Whether a library makes one in each call, for the garbage collector to free.
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
        Whether it has been used up, so that the answer None means that nothing is known.
    """

    __slots__ = ("_left", "is_spent")

    def __init__(self, objects: int) -> None:
        self._left = objects
        self.is_spent = False

    def spend(self, objects: int) -> bool:
        """Return whether so many may be looked at, which counts them."""
        self._left -= objects
        self.is_spent = self.is_spent or self._left < 0
        return not self.is_spent


@final
class Garbage:
    """What a search from all roots did not meet, with what refers to what.

    Parameters
    ----------
    met : dict
        What the search has met, by ``id``.
    allowance : Allowance
        How much may be looked at.
    wanted : collection of hashable
        Storages, as `Framework.memory` returns them.

    Attributes
    ----------
    tensors : dict
        For each of these storages that was found, a tensor over it.
    """

    __slots__ = ("_allowance", "_objects", "_referrers", "tensors")

    def __init__(self, met: dict[int, object], allowance: Allowance, wanted: Collection[Hashable] = ()) -> None:
        self._allowance = allowance
        self._objects: dict[int, object] = {}
        self._referrers: dict[int, list[int]] = {}
        self.tensors: dict[Hashable, object] = {}
        # What the garbage collector does not list, arrays and tuples of them, something listed
        # refers to.
        # Since 3.14 the collector lists dictionaries that are empty, too.
        ours = {id(thing) for thing in (met, self._objects, self._referrers, self.tensors)}
        pending = [
            thing
            for thing in tracked_objects()
            if id(thing) not in ours and id(thing) not in met and type(thing) not in HIDDEN_TYPES
        ]
        while pending:
            thing = pending.pop()
            key = id(thing)
            if key in self._objects:
                continue
            self._objects[key] = thing
            known = framework_of(type(thing)) if wanted else None
            if known is not None and known[1] != "node":
                for _, identity, _ in known[0].memory_of(thing):
                    if identity in wanted:
                        self.tensors.setdefault(identity, thing)
            children = referents(thing)
            if not allowance.spend(1 + len(children)):
                return
            for child in children:
                if id(child) in met or id(child) in ours or type(child) in HIDDEN_TYPES:
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
        # An instance has its attributes in itself until somebody asks for its dict, as what spells
        # a chain does: from then on that stands between.
        island = {id(thing) for member in members for thing in (member, instance_dict_of(member)) if thing is not None}
        allowance = self._allowance

        def is_member(thing: object) -> bool:
            return id(thing) in island

        for member in members:
            loop = _path(member, member, is_member, allowance)
            if allowance.is_spent:
                return None
            if loop is not None:
                first = next((index for index, thing in enumerate(loop) if type(thing) not in _SILENT), 0)
                loop = [*loop[first:-1], *loop[: first + 1]]
                hold = None if loop[0] is target else _path(loop[0], target, is_member, allowance)
                held = "" if hold is None else spelled(hold, "").removeprefix(", ").lstrip()
                text = _spelled_loop(loop)
                known = known_on(loop, text)
                # References from variables here would count as those of an extension.
                del member
                return Cycle(text, held, self._is_collectable(loop), known, is_of_library=is_cycle_of_library(text))
        # Python sees no reference from C++: a gradient whose graph leads back to its parameter is
        # no member then.
        loop = _path(target, target, _is_of_graph, allowance)
        if loop is None:
            return None
        text = f"{spelled(loop, called(target))} -> {called(target)}"
        return Cycle(text, "", False, known_on(loop, text))

    def islands_of(self, targets: Iterable[object]) -> int:
        """Return how many of some objects nothing leads to that leads to another, at most three."""
        met: set[int] = set()
        islands = 0
        for target in targets:
            ancestors = self._ancestors_of(target)
            if ancestors is None:
                continue
            island = {id(target), *map(id, ancestors)}
            islands += met.isdisjoint(island)
            met |= island
            if islands == REPEATED:
                break
        return islands

    def _ancestors_of(self, target: object) -> list[object] | None:
        """Return what leads to an object, nearest first; None if a root does, so it is no garbage.

        None also where the allowance is spent.
        """
        if self._allowance.is_spent:
            return None
        ancestors: list[object] = []
        met = {id(target)}
        pending = deque(met)
        while pending:
            for key in self._referrers.get(pending.popleft(), ()):
                if key in met:
                    continue
                if len(ancestors) == _ANCESTOR_LIMIT or _is_root(self._objects[key]):
                    return None
                met.add(key)
                ancestors.append(self._objects[key])
                pending.append(key)
        return ancestors

    def _is_collectable(self, loop: Sequence[object]) -> bool:
        """Return whether the garbage collector frees a loop.

        It does where it sees every reference to a member: it sees what a tensor and a node that is
        written in Python refer to, and not what one of C++ does, such as the hooks of its tensors.
        """
        if not any((known := framework_of(class_of(thing))) is not None and known[1] != "module" for thing in loop):
            return True
        if not all(_is_seen(thing, following) for thing, following in pairwise(loop)):
            return False
        for index, thing in enumerate(loop[:-1]):
            if class_of(thing) is not OrderedDict:
                continue
            del thing
            seen = sum(
                sum(child is loop[index] for child in gc.get_referents(referrer))
                for referrer in gc.get_referrers(loop[index])
            )
            # One reference is the argument's.
            if sys.getrefcount(loop[index]) - 1 > seen:
                return False
        return True


hide_types(Garbage, Search)


def _is_of_graph(thing: object) -> bool:
    known = framework_of(class_of(thing))
    return known is not None and known[1] in ("tensor", "node")


def _is_seen(thing: object, following: object) -> bool:
    """Return whether the garbage collector sees a thing, or its namespace, refer to another."""
    return any(
        child is following
        or (type(child) is dict and any(value is following for value in cast("dict[object, object]", child).values()))
        for child in gc.get_referents(thing)
    )


def _is_root(thing: object) -> bool:
    """Return whether an object is a root, whose contents the garbage collector does not free."""
    return is_module(thing) or issubclass(type(thing), type) or (is_namespace(thing))


def _path(
    start: object, goal: object, is_member: Callable[[object], bool], allowance: Allowance
) -> list[object] | None:
    """Return the shortest chain from one object to another, or back to itself, through members.

    None where there is none, or the allowance is spent.
    """
    links: dict[int, object] = {}
    # A node of C++ has an object only as long as that is referred to.
    kept: list[object] = []
    pending = deque([start])
    while pending:
        node = pending.popleft()
        children = referents_of(node)
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


def _spelled_loop(loop: list[object]) -> str:
    pieces = [called(loop[0])]
    for step, thing in zip(steps(loop), loop[1:], strict=True):
        if step.startswith(" frame "):
            # The step says which frame it is.
            pieces[-1] = pieces[-1].removesuffix("frame").removesuffix(" ")
        pieces[-1] += step
        if type(thing) not in _SILENT or thing is loop[0]:
            pieces.append(called(thing))
    if len(pieces) > _MEMBERS_SHOWN:
        half = _MEMBERS_SHOWN // 2
        pieces = [*pieces[:half], f"… {len(pieces) - 2 * half} more …", *pieces[-half:]]
    return " -> ".join(pieces).removeprefix(" ")
