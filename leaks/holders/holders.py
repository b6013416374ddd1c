"""Find what still holds a resource or some memory, and how.

What only a left-over variable refers to is no leak, and is found out here too.
"""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from typing import Final, Literal, Self, TypeVar, cast, final

from ...scopes.base.process import install_imported
from ...scopes.compiled import referents
from ...scopes.framework import Framework
from ...scopes.identity import AnchoredEntry, Entry, HeldEntry, anchor_entry_of
from ..births.log import Row, Subject, UnheldMemory
from ..report.leaks import KnownLeak
from .known import known_on, remedy_on
from .origins import SEVERAL_KEYS, Chain, Holder, Origin, reworded
from .paths import chain_as_code
from .references import (
    EDGES_PLAIN,
    IN_EXCEPTION,
    IN_GRAPH,
    SUSPENDED,
    class_of,
    framework_of,
    is_container,
    is_static,
    references_to,
    referents_of,
)
from .retained import Piece, Retained, retained_by
from .roots import count_names, library_frames, library_roots, typed_roots, user_roots
from .search import Allowance, Cycle, Garbage, Search

__all__ = [
    "NOT_FOUND",
    "Holders",
    "Reason",
    "leftovers_among",
]

# Disposed resources that only a left-over variable refers to are no leak: they hold no memory and
# do not grow.
#
# After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still refers to the last
# batch, which is disposed. Correct code looks like this. A disposed resource is reported if
# anything else refers to it, or if a container has resources that several closings of scopes
# disposed, as a growing history does.


_LEVELS: Final = 4
"""So many containers inside one another are looked through, from a resource outwards."""

_RESOURCES_AT_MOST: Final = 1_000
"""Containers are looked for around so many disposed resources at most."""


def leftovers_among(entries: Sequence[Entry], closings: Sequence[int | None]) -> set[Entry]:
    """Return those of some disposed resources that only left-over variables refer to.

    Parameters
    ----------
    entries : sequence of Entry
        Disposed resources.
    closings : sequence of int or None
        For each, how many scopes had been closed when it was disposed.
    """
    anchors = {entry: anchor for entry in entries if (anchor := anchor_entry_of(entry)) is not entry}
    if anchors:
        # A composite that is a tuple is made anew each time it is asked for: look for its anchor.
        asked = {anchors.get(entry, entry): closing for entry, closing in zip(entries, closings, strict=True)}
        left = leftovers_among(list(asked), list(asked.values()))
        return {entry for entry in entries if anchors.get(entry, entry) in left}
    keys = {entry.key for entry in entries if entry() is not None}
    names = count_names(keys)
    left = {entry for entry in entries if 0 < references_to(entry) == names.get(entry.key, 0)}
    rest = [(entry, closing) for entry, closing in zip(entries, closings, strict=True) if entry not in left]
    if 0 < len(rest) <= _RESOURCES_AT_MOST:
        left |= _Neighbourhood([entry for entry, _ in rest]).left_over(dict(rest))
    return left


@final
class _Neighbourhood:
    """The containers around some resources, to tell whether only variables lead to a resource.

    References are counted. So the objects must be referred to from here only by `_nodes`.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        # The resources and the containers around them, by ``id``.
        self._nodes: dict[int, object] = {}
        # For each of them, the containers that refer to it, once for each reference.
        self._holders: dict[int, list[int]] = {}
        for entry in entries:
            thing = entry()
            if thing is not None:
                self._nodes[id(thing)] = thing
        thing = None
        frontier = list(self._nodes)
        for _ in range(_LEVELS):
            frontier = self._add_holders(frontier)
        names = count_names(self._nodes)
        # For each of them, how many references to it are not of variables.
        self._unexplained = {key: self._references(key) - names.get(key, 0) for key in self._nodes}

    def left_over(self, closings: dict[Entry, int | None]) -> set[Entry]:
        """Return the resources that only variables lead to.

        The way may lead through containers whose resources were all disposed at the same closing of
        a scope.
        """
        closings_in: dict[int, set[int | None]] = {}
        candidates: dict[Entry, set[int]] = {}
        for entry, closing in closings.items():
            if entry.key not in self._nodes or not self._is_explained(entry.key, frozenset()):
                continue
            candidates[entry] = containers = set(self._containers_around(entry.key))
            for key in containers:
                closings_in.setdefault(key, set()).add(closing)
        return {
            entry
            for entry, containers in candidates.items()
            if closings[entry] is not None and all(len(closings_in[key]) == 1 for key in containers)
        }

    def _add_holders(self, keys: list[int]) -> list[int]:
        """Add the containers that refer to some objects, and return those that are new."""
        things = tuple(self._nodes[key] for key in keys)
        added: list[int] = []
        wanted = set(keys)
        for holder in gc.get_referrers(*things) if things else ():
            if holder is self._nodes:
                continue
            # Before `is_container`, which asks frameworks: an instance that is asked for its
            # attributes makes a dict of them, which refers to them from then on.
            inside = [id(child) for child in referents_of(holder) if id(child) in wanted]
            if not is_container(holder):
                continue
            for key in inside:
                self._holders.setdefault(key, []).append(id(holder))
            if inside and id(holder) not in self._nodes:
                self._nodes[id(holder)] = holder
                added.append(id(holder))
        return added

    def _references(self, key: int) -> int:
        # One reference is that of _nodes, one the argument's.
        return sys.getrefcount(self._nodes[key]) - 2

    def _is_explained(self, key: int, inside: frozenset[int]) -> bool:
        """Return whether variables and containers have all references to an object.

        The same must hold for these containers. `inside` has the objects from the resource to here.
        """
        holders = self._holders.get(key, [])
        if key in inside or self._unexplained[key] != len(holders):
            return False
        return all(self._is_explained(holder, inside | {key}) for holder in set(holders))

    def _containers_around(self, key: int) -> Iterator[int]:
        for holder in set(self._holders.get(key, [])):
            yield holder
            yield from self._containers_around(holder)


# Memory that has outlived its scope and that only a left-over variable refers to is no leak at the
# end of a program.
#
# After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still refers to the
# arrays of the last batch. Memory is left over if all references to it are of variables, and of
# containers whose memory was born between the same two closings. A container must belong to a scope
# that was not the first of its name: a list that is filled in a scope which is entered once is no
# left-over batch.


_MEMORY_AT_MOST: Final = 10_000
"""So many pieces of memory are looked at: of more, a report shows few."""

_TO_BASE: Final = (".base", "._base")
"""So the steps end from a view of NumPy's or PyTorch's to the object that has its memory."""


def left_over_memory(search: Search, born: Mapping[UnheldMemory, Row], passes: Mapping[str, int]) -> set[UnheldMemory]:
    """Return the memory that only left-over variables refer to.

    Parameters
    ----------
    search : Search
        The search that has found the holders of the memory. It must not be closed yet.
    born : mapping
        The memory, and the row of its birth.
    passes : mapping of str to int
        How many passes of each name there were.
    """
    ways = {memory: way for memory in list(born)[:_MEMORY_AT_MOST] if (way := _way_from_variable(search, memory))}
    names = count_names({key for way in ways.values() for key in way})
    left: set[UnheldMemory] = set()
    closings: dict[int, set[int]] = {}
    for memory, way in ways.items():
        in_container = framework_of(class_of(search.seen[way[0]])) is None
        if _is_explained(search, way, names) and (not in_container or _was_in_loop(born[memory], passes)):
            left.add(memory)
            if in_container:
                closings.setdefault(way[0], set()).add(born[memory].closings)
    return {memory for memory in left if len(closings.get(ways[memory][0], ())) <= 1}


def _way_from_variable(search: Search, memory: UnheldMemory) -> list[int]:
    """Return the ids of the objects from a variable to some memory.

    Behind the object that was found come the objects that it is a view of. Empty where the way does
    not begin at a variable, leads through a graph, or is not the only one.
    """
    way: list[int] = []
    for origin, chain, step in search.ways.to(memory):
        if step or way or origin.kind not in ("module", "frame"):
            return []
        way = [id(thing) for thing in chain]
        last: object = chain[-1]
        while last is not None:
            known = framework_of(class_of(last))
            last = (
                None
                if known is None
                else next((base for step, base in known.framework.references(last) if step.endswith(_TO_BASE)), None)
            )
            if last is not None:
                search.seen[id(last)] = last
                way.append(id(last))
    return way


def _was_in_loop(birth: Row, passes: Mapping[str, int]) -> bool:
    # The passes of a scope without a name are counted under its line, which the row has not.
    scope = birth.scope
    return passes.get(scope, 0) > 1 if scope else birth.closings > 0


def _is_explained(search: Search, way: Sequence[int], names: Mapping[int, int]) -> bool:
    """Return whether variables and the objects on the way have all references to these objects."""
    for position, key in enumerate(way):
        cls = class_of(search.seen[key])
        known = framework_of(cls)
        if (known is None or known.part != "tensor") and not is_container(search.seen[key]):
            return False
        # One reference is the search's, one the argument's.
        if sys.getrefcount(search.seen[key]) - 2 != names.get(key, 0) + (position > 0):
            return False
    return True


# The holders of a subject, and the reason why it is there.


Reason = Literal["held", "suspended", "exception", "graph", "cycle", "owned", "unfinished", "unknown"]
"""What holds a subject.

* ``"held"``: variables and what they lead to
* ``"suspended"``: only suspended generators and coroutines
* ``"exception"``: only exceptions
* ``"graph"``: only graphs
* ``"cycle"``: a reference cycle that no root leads to
* ``"owned"``: its scope, as its type cannot be referred to weakly
* ``"unfinished"``: not known, as the search ended at its limit
* ``"unknown"``: not found by a search that came to its end
"""

NOT_FOUND: Final = "not found: code of an extension, or an expression that is being evaluated"
OWNED: Final = "its scope, because it cannot be weakly referenced"

_T = TypeVar("_T")

_CHAINS_SHOWN: Final = 3
"""So many chains are shown for a line; and of its newest subjects so many are asked for graphs."""

_SUBJECTS_ASKED: Final = 12
"""About so many subjects of a line stand for all of them: a line may have a million."""

_SUBJECTS_WITH_ALL_WAYS: Final = 1_000
"""Of a line with more subjects, further holders are found only of those that stand for all."""

_CONTAINERS: Final = (list, tuple, set, frozenset, dict, deque, OrderedDict, defaultdict)


def _without_numbers_and_keys(chain: str) -> tuple[str, str]:
    """Return a chain without numbers, and without any indices and keys.

    What comes behind the step into a graph makes no difference.
    """
    before_graph, _, _ = chain.partition(_INTO_A_GRAPH)
    text = _REPEATED_STEP.sub(r"\1", _NUMBERS_IN_CHAINS.sub("[]", before_graph))
    return text, _ANY_KEY.sub("[]", text)


def _may_be_a_table(cls: type) -> bool:
    """Return whether instances of a type hold others: also those of a class in Python."""
    return cls in _CONTAINERS or not (is_static(cls) or framework_of(cls) is not None)


_TABLES_AT_LEAST: Final = 3
"""Subjects in fewer containers are not said to be in several tables."""

_INTO_A_GRAPH: Final = ".grad_fn."
"""The step of a chain that leads into an autograd graph."""

_PERIODS: Final = 2 * 3 * 5
"""The step between subjects that are asked has no factor in common with this: see `_spread`."""

_CYCLE_OBJECTS_PER_OBJECT: Final = 10
"""The search for cycles looks at so many objects for each of the limit: a look costs less there."""

_MOST: Final = 0.75
"""What holds this share of the subjects that were asked is said to hold all: a left-over variable
may hold the others.
"""

_FEW_SUBJECTS: Final = 1 / 6
"""What holds a smaller share of the subjects that were asked is not reported, such as a left-over
variable that holds the last one.
"""

_REASONS: Final[dict[int, Reason]] = {
    EDGES_PLAIN: "held",
    SUSPENDED: "suspended",
    IN_EXCEPTION: "exception",
    IN_GRAPH: "graph",
}
"""By the stage of the search in which a subject was found."""

_NUMBERS_IN_CHAINS: Final = re.compile(
    r"(?:(?: … )?\.next_functions\[[^\[\]]*\]\[0\])+|\[-?\d+\]|:\d+|(?<=^task ')Task-\d+(?=')"
)
"""The parts of chains by which holders of the same sort differ.

They are ways through nodes of a graph, indexes, line numbers, and the numbers of tasks.
"""

_ANY_KEY: Final = re.compile(r"\[[^\[\]]+\]")

_STEP: Final = r"(\.[\w<>]+|\['[^'\]]*'\]|, closure of [^,]+, cell '\w+')"
"""An attribute, a key that is a string, or the cell of a closure."""

_REPEATED_STEP: Final = re.compile(rf"{_STEP}(?:(?: … )?\1)+(?![\w<>])")
"""The same step twice or more often, as in a linked list."""

_LONG_REPEATED_STEP: Final = re.compile(rf"{_STEP}(?:(?: … )?\1){{3,}}(?![\w<>])")
"""The same step four times or more often: shown as two with dots between."""


@final
@dataclass(slots=True)
class _HeldBy:
    """Why a subject is there that no root leads to."""

    reason: Reason
    cycle: Cycle | None = None


@final
class Holders:
    """Finds the holders of some subjects when its block is entered, and answers inside it.

    Parameters
    ----------
    groups : sequence of sequence of Entry or UnheldMemory
        The subjects: resources, live or disposed, and memory. Those of one line are one group,
        oldest first.
    object_limit : int
        How many objects are reached at most; ten times as many references are looked at. No clock
        is read, so that the answers do not depend on how busy the machine is.
    sizes : dict, optional
        Storages with their bytes, for `used_nbytes`.
    meets_all : bool, default False
        Whether the search goes on when all subjects are found: `retained` needs everything that
        variables lead to.
    few : int, default 0
        Of a group of which at most so many are not found in the variables of the program, these are
        left out: no library and no cycle is searched for them. Their reason is ``"unknown"``.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Subject]],
        *,
        object_limit: int,
        sizes: dict[Hashable, int] | None = None,
        meets_all: bool = False,
        few: int = 0,
    ) -> None:
        install_imported()
        self._object_limit = object_limit
        self._few = few
        # A composite that is a tuple is made anew each time it is asked for: look for its anchor.
        self._anchors: dict[Subject, Subject] = {
            subject: anchor
            for group in groups
            for subject in group
            if isinstance(subject, AnchoredEntry) and (anchor := anchor_entry_of(subject)) is not subject
        }
        anchors = self._anchors
        self._groups = [[anchors.get(subject, subject) for subject in group] if anchors else group for group in groups]
        self._search = Search(
            (subject for group in self._groups for subject in group),
            object_limit,
            sizes or {},
            meets_all=meets_all,
            asked={
                subject
                for group in self._groups
                for subject in (group if len(group) <= _SUBJECTS_WITH_ALL_WAYS else _spread(group))
            },
        )
        self._held_by: dict[Subject, _HeldBy] = {}
        # Whether the search for cycles ended at its limit, before every group was asked.
        self._cycles_are_unfinished = False

    def __enter__(self) -> Self:
        try:
            self._find()
        except BaseException:
            self._search.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._search.close()

    def _find(self) -> None:
        search = self._search
        search.from_roots(*user_roots(), libraries=False)
        if not search.stopped and search.left:
            search.from_roots(library_frames(), libraries=False)
        if self._few:
            self._leave_out_few()
        if not search.stopped and search.left:
            search.from_roots(library_roots(), libraries=True)
        if not search.stopped and search.left:
            self._look_for_cycles()
        for libraries in (False, True):
            # Not where a subject may still be in a cycle: a member of it would be reported.
            if not search.stopped and not self._cycles_are_unfinished and search.left:
                wanted = {subject.key for subject in search.left if isinstance(subject, Entry)}
                search.from_roots(typed_roots(wanted | search.seen.keys(), libraries=libraries), libraries=libraries)
        for subject in search.left:
            reason: Reason = "unfinished" if search.stopped or self._cycles_are_unfinished else "unknown"
            self._held_by.setdefault(
                subject, _HeldBy("owned" if isinstance(subject, HeldEntry) and subject.is_held else reason)
            )

    def _leave_out_few(self) -> None:
        left = set(self._search.left)
        for group in self._groups if left else ():
            few = left.intersection(group)
            if len(few) <= self._few:
                for subject in few:
                    self._search.settle(subject)

    @property
    def may_be_pinned(self) -> bool:
        """Return whether the search ended before it was known whether views pin some memory."""
        return self._search.may_be_pinned

    def used_nbytes(self, identity: Hashable) -> int | None:
        """Return the bytes of a storage that objects use; None if not all users are known."""
        return None if self._search.cut_short else self._search.used.get(identity, 0)

    def reasons_of(self, subjects: Sequence[Subject]) -> list[Reason]:
        """Return the reason why each subject is held."""
        reasons: list[Reason] = []
        lone_tensors, stages = self._search.lone_tensors, self._search.stages
        for subject in subjects:
            asked = self._anchors.get(subject, subject) if self._anchors else subject
            answer = self._held_by.get(asked) if self._held_by else None
            if answer is None:
                stage = EDGES_PLAIN if asked in lone_tensors else stages.get(asked)
                reasons.append("unknown" if stage is None else _REASONS[stage])
            else:
                reasons.append(answer.reason)
        return reasons

    def left_over(self, born: Mapping[UnheldMemory, Row], passes: Mapping[str, int]) -> set[UnheldMemory]:
        """Return the memory that only left-over variables refer to: see `left_over_memory`."""
        return left_over_memory(self._search, born, passes) if born else set()

    def retained(self, pieces: Sequence[Piece], *, asks_libraries: bool = True) -> list[Retained]:
        """Return what retains some pieces of memory: see `retained_by`."""
        return retained_by(self._search, pieces, asks_libraries=asks_libraries)

    def cycle_of(self, subjects: Sequence[Subject]) -> Cycle | None:
        """Return the cycle that keeps the first subject that has one, or None."""
        for subject in subjects:
            answer = self._held_by.get(self._anchors.get(subject, subject))
            if answer is not None and answer.cycle is not None:
                return answer.cycle
        return None

    def chains_of(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """Return how code reaches some subjects that are held in one way: at most three chains.

        The chains that reach most subjects come first, and of these the chains of the oldest
        subject. A chain that reaches few of many subjects is left out, such as that of a left-over
        variable, which reaches the last one.

        Chains that differ only by an index or a key are shown as one, and so are chains that
        differ by how often a step is taken, as in a linked list.
        """
        # By the text without keys, then by the text without numbers, the first such chain.
        alike: dict[str, dict[str, str]] = {}
        # How many subjects the chains with each of these texts reach.
        reached: Counter[str] = Counter()
        asked = _spread(subjects)
        for subject in asked:
            for chain in self._chains_of_one(self._anchors.get(subject, subject)):
                text, way = _without_numbers_and_keys(chain)
                reached.update({text, way})
                alike.setdefault(way, {}).setdefault(text, chain)
        enough = _FEW_SUBJECTS * len(asked)
        shown: list[str] = []
        ways = [way for way in alike if reached[way] >= enough] or [*alike]
        for way in sorted(ways, key=lambda way: -reached[way]):
            texts = alike[way]
            chains = [chain for text, chain in texts.items() if reached[text] >= enough]
            shown += _without_keys(chains or [*texts.values()])
        shown = shown[:_CHAINS_SHOWN]
        return tuple(
            reworded(chain, _LONG_REPEATED_STEP.sub(lambda step: f"{step[1]} … {step[1].removeprefix(', ')}", chain))
            for chain in shown
        )

    def ways_of(self, subjects: Sequence[Subject]) -> set[str]:
        """Return how code reaches some of the subjects, without the indices and keys."""
        asked = [self._anchors.get(subject, subject) for subject in _spread(subjects)]
        return {_without_numbers_and_keys(chain)[1] for subject in asked for chain in self._chains_of_one(subject)}

    def known_of(self, subjects: Sequence[Subject]) -> KnownLeak | None:
        """Return the known leak of a library that holds most of some subjects, or None.

        Something else may hold the others, as a left-over variable holds the last.
        """
        asked = _spread(subjects)
        found = [known for subject in asked if (known := self._known_of_one(subject)) is not None]
        return found[0] if found and len(found) >= _MOST * len(asked) else None

    def are_in_a_bounded_deque(self, subjects: Sequence[Subject], owners: int | None = None) -> bool:
        """Return whether most subjects are held by a deque with a ``maxlen``, each by its own item.

        Such a deque does not grow. Subjects that one item collects do not count, nor subjects that
        something else holds as well: these may grow.

        Parameters
        ----------
        owners : int, optional
            Of how many objects the subjects are parts. These objects are the items then.
        """
        # For each deque, by ``id``, the ids of its items that hold a subject.
        items: dict[int, set[int]] = {}
        # For each deque, by ``id``, how often it and its items refer to each object.
        inside: dict[int, Counter[int]] = {}
        asked = _spread(subjects)
        for subject in asked:
            key = self._search.lone_tensors.get(subject)
            # One reference is the search's, one the argument's. Count before the ways are made,
            # which have references too.
            references = 0 if key is None else sys.getrefcount(self._search.seen[key]) - 2
            ways = self._search.ways.to(self._anchors.get(subject, subject))
            found = [pair for _, chain, _ in ways if (pair := _bounded_deque_on(chain)) is not None]
            if len(found) < len(ways):
                continue
            if references > 1 and key is not None and found:
                bounded = found[0][0]
                if id(bounded) not in inside:
                    inside[id(bounded)] = Counter(
                        id(thing) for item in referents(bounded) for thing in (item, *referents(item))
                    )
                if references > inside[id(bounded)][key]:
                    continue
            for bounded, item in found:
                items.setdefault(id(bounded), set()).add(id(item))
        expected = len(asked) if owners is None else min(owners, len(asked))
        return max(map(len, items.values()), default=0) >= _MOST * expected

    def are_in_several_tables(self, subjects: Sequence[Subject]) -> bool:
        """Return whether subjects are items of several containers, each of which has some of them.

        Three runs of subjects that were made one after another are looked at: at the beginning, in
        the middle and at the end. It is false where one container has all of them, or where each
        subject has a container of its own.

        Parameters
        ----------
        subjects : sequence of Subject
            In the order in which they were made.
        """
        part = _SUBJECTS_ASKED if len(subjects) >= 3 * _SUBJECTS_ASKED else len(subjects) // 3
        half = (len(subjects) - part) // 2
        asked = [*subjects[:part], *subjects[half : half + part], *subjects[len(subjects) - part :]]
        # For each level of containers, counted outwards from the subject, the ids of those there.
        levels: dict[int, set[int]] = {}
        for subject in asked:
            _, chain, _ = next(iter(self._search.ways.to(self._anchors.get(subject, subject))), ("", (), ""))
            containers = [thing for thing in reversed(chain) if _may_be_a_table(class_of(thing))]
            for level, container in enumerate(containers):
                levels.setdefault(level, set()).add(id(container))
        return any(_TABLES_AT_LEAST <= len(containers) <= len(asked) // 2 for containers in levels.values())

    def remedy_of(self, subjects: Sequence[Subject]) -> str:
        """Return what ends the holders of most of some subjects; ``""`` where that is not known."""
        remedies: dict[str, int] = {}
        asked = _spread(subjects)
        for subject in asked:
            answer = self._held_by.get(subject)
            if answer is not None:
                found = set[str]() if answer.cycle is None else {remedy_on((), answer.cycle.loop)}
            else:
                ways = self._search.ways.to(self._anchors.get(subject, subject))
                found = {remedy_on(chain, chain_as_code(chain, origin.text) + step) for origin, chain, step in ways}
            if len(found) == 1:
                [remedy] = found
                remedies[remedy] = remedies.get(remedy, 0) + 1
        return next((remedy for remedy, times in remedies.items() if times >= _MOST * len(asked)), "")

    def _known_of_one(self, subject: Subject) -> KnownLeak | None:
        answer = self._held_by.get(subject)
        if answer is not None:
            return None if answer.cycle is None else answer.cycle.known
        ways = self._search.ways.to(self._anchors.get(subject, subject))
        found = [known_on(chain, chain_as_code(chain, origin.text) + step) for origin, chain, step in ways]
        return None if None in found or not found else found[0]

    def passes_of(self, subjects: Sequence[Subject]) -> int:
        """Return over how many passes of a loop the graph of a tensor reaches.

        Only the newest of the tensors are examined.
        """
        newest = subjects[-_CHAINS_SHOWN:]
        return max((self._search.ways.passes_of(self._anchors.get(subject, subject)) for subject in newest), default=0)

    def graph_nbytes_of(self, subjects: Sequence[Subject]) -> int:
        """Return the bytes of the largest graph of some tensors. Only the newest are examined."""
        newest = subjects[-_CHAINS_SHOWN:]
        ways = self._search.ways
        return max((ways.graph_nbytes_of(self._anchors.get(subject, subject)) for subject in newest), default=0)

    def node_nbytes_of(self, subjects: Sequence[Subject], carriers: Container[int]) -> int:
        """Return about how many bytes the nodes take that the graph of each of some tensors adds.

        Two tensors in the middle are examined. The last one may be a variable's, which still has a
        graph that the others were detached from.

        Parameters
        ----------
        carriers : set of int
            Tensors whose graphs count elsewhere, by ``id``.
        """
        middle = len(subjects) // 2
        two = subjects[max(0, middle - 1) : middle + 1]
        return self._search.ways.node_nbytes_of([self._anchors.get(subject, subject) for subject in two], carriers)

    def roots_of_graphs(self, subjects: Sequence[Subject]) -> dict[int, object]:
        """Return the tensors whose graphs hold some subjects, by ``id``."""
        return self._search.ways.roots_of_graphs(self._anchors.get(subject, subject) for subject in subjects)

    def steps_of_graphs(self, tensors: Sequence[object]) -> list[tuple[float, bool]]:
        """Return when in a loop the graphs of some tensors were made, in order, each once.

        Each is the share of the steps of the loop that had passed, and whether the graph is spent:
        see `Framework.step_of_graph`. Only some of the tensors are examined.
        """
        steps: set[tuple[float, bool]] = set()
        for tensor in _spread(tensors):
            known = framework_of(class_of(tensor))
            step = None if known is None else known.framework.step_of_graph(tensor)
            if step is not None:
                steps.add(step)
        return sorted(steps)

    def evaluations_of(self, tensors: Sequence[object]) -> int:
        """Return how many evaluations of a model the graphs of some tensors are of, at least.

        They are as many as the tensors, or those that the graph of one of them adds up. Only some
        of the tensors are examined.
        """
        evaluations = len(tensors)
        for tensor in _spread(tensors):
            known = framework_of(class_of(tensor))
            if known is not None:
                evaluations = max(evaluations, known.framework.evaluations_behind(tensor))
        return evaluations

    def nbytes_of_graphs(self, tensors: Sequence[object]) -> int:
        """Return about how many bytes the graphs of some tensors take.

        What the graphs saved counts, each storage once. For the nodes of each graph the bytes of
        the nodes of one tensor in the middle are taken.
        """
        by_framework: dict[Framework, list[object]] = {}
        for tensor in tensors:
            known = framework_of(class_of(tensor))
            if known is not None:
                by_framework.setdefault(known.framework, []).append(tensor)
        nbytes = 0
        for framework, its_tensors in by_framework.items():
            middle = len(its_tensors) // 2
            nodes_nbytes = framework.node_nbytes_behind(its_tensors[max(0, middle - 1) : middle + 1])
            nbytes += framework.graph_nbytes_behind(its_tensors) + nodes_nbytes * len(its_tensors)
        return nbytes

    def is_of_evaluation(self, subjects: Sequence[Subject]) -> bool:
        """Return whether the graph that holds some subjects is that of a model in eval mode."""
        ways = self._search.ways
        return any(ways.is_of_evaluation(self._anchors.get(subject, subject)) for subject in subjects[-_CHAINS_SHOWN:])

    def carriers_of(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """Return the tensors whose graphs hold some subjects: at most three.

        A tensor whose graph holds few of many subjects is left out, such as a left-over variable's.
        """
        carriers: dict[str, str] = {}
        reached: Counter[str] = Counter()
        asked = _spread(subjects)
        for subject in asked:
            for carrier in self._search.ways.carriers_of(self._anchors.get(subject, subject)):
                text = _NUMBERS_IN_CHAINS.sub("[]", carrier)
                reached[text] += 1
                carriers.setdefault(text, carrier)
        enough = [carrier for text, carrier in carriers.items() if reached[text] >= _FEW_SUBJECTS * len(asked)]
        return tuple(enough or carriers.values())[:_CHAINS_SHOWN]

    def _chains_of_one(self, subject: Subject) -> Sequence[str]:
        answer = self._held_by.get(subject)
        if answer is None:
            return self._search.ways.chains_of(subject)
        if answer.cycle is not None:
            text = str(answer.cycle)
            return [Holder(text, Chain(Origin(text, "cycle")))]
        if answer.reason == "owned":
            return [Holder(OWNED, Chain(Origin(OWNED, "scope")))]
        if answer.reason == "unfinished":
            return [unfinished_text(self._object_limit)]
        return [NOT_FOUND]

    def _look_for_cycles(self) -> None:
        search = self._search
        left = set(search.left)
        allowance = Allowance(self._object_limit * _CYCLE_OBJECTS_PER_OBJECT)
        wanted = {subject.identity for subject in left if not isinstance(subject, Entry)}
        garbage = Garbage(search.seen, allowance, wanted)
        for group in self._groups:
            unreached = [
                subject
                for subject in group
                if subject in left and (isinstance(subject, Entry) or subject.identity in garbage.tensors)
            ]
            # What the line made may be in the cycle or only hang on it.
            targets = [_target_of(subject, garbage) for subject in _spread(unreached)]
            cycles = (garbage.cycle_around(target) for target in targets if target is not None)
            cycle = next((found for found in cycles if found is not None), None)
            if cycle is not None:
                times = max(1, garbage.islands_of(targets))
                cycle = replace(cycle, times=times, stays=not gc.isenabled())
                for subject in unreached:
                    # No root leads to the others of the group either: the cycle is said of all.
                    self._held_by[subject] = _HeldBy("cycle", cycle)
                    search.settle(subject)
        self._cycles_are_unfinished = allowance.is_spent


def _target_of(subject: Subject, garbage: Garbage) -> object:
    """Return a resource, or a tensor in the garbage that uses some memory; None if it is gone."""
    return subject() if isinstance(subject, Entry) else garbage.tensors[subject.identity]


def _bounded_deque_on(chain: Sequence[object]) -> tuple[deque[object], object] | None:
    """Return the first deque with a ``maxlen`` on a chain, and its item that the chain leads to."""
    for thing, following in pairwise(chain):
        if issubclass(class_of(thing), deque):
            found = cast("deque[object]", thing)
            if found.maxlen is not None:
                return found, following
    return None


def unfinished_text(object_limit: int) -> str:
    """Return the text of a report for the holder of a subject that a search did not reach."""
    return f"not found within {object_limit:,} objects" if object_limit else "not found: not searched for"


def _without_keys(chains: Sequence[str]) -> Sequence[str]:
    """Return chains that differ only by keys as one chain, if they are too many to be shown."""
    if len(chains) <= _CHAINS_SHOWN:
        return chains
    # For each position of a key, the keys of all chains.
    columns = iter([*zip(*map(_ANY_KEY.findall, chains), strict=False)])

    def common_key(match: re.Match[str]) -> str:
        return match[0] if len(set(next(columns, ()))) == 1 else SEVERAL_KEYS

    return [reworded(chains[0], _ANY_KEY.sub(common_key, chains[0]))]


def _spread(things: Sequence[_T]) -> Sequence[_T]:
    """Return the first of some things, and others spread evenly over the rest."""
    step = max(1, len(things) // _SUBJECTS_ASKED)
    while gcd(step, _PERIODS) > 1:
        # With a step of two or ten all of them might be what a loop keeps at every tenth turn.
        step -= 1
    return things[::step]
