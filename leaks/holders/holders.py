"""Find what still holds a thing, and how.

A thing that only a left-over variable references is no leak.
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
from .paths import spelled
from .references import (
    EDGES_PLAIN,
    IN_EXCEPTION,
    IN_GRAPH,
    SUSPENDED,
    class_of,
    framework_of,
    is_container,
    references_to,
    referents_of,
)
from .retained import Piece, Retained, retained_by
from .roots import count_names, library_frames, library_roots, typed_roots, user_roots
from .search import Allowance, Cycle, Garbage, Search

__all__ = [
    "NOT_FOUND",
    "SEVERAL_KEYS",
    "Holders",
    "Reason",
    "leftovers_among",
]

# Disposed resources that only a left-over variable references are no leak: they hold no memory and
# do not grow.
#
# After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still references the
# last batch, which is disposed. Correct code looks like this. A resource is reported as disposed
# under a live reference if anything else refers to it, or if a container holds what several
# closings of scopes disposed, as a growing history does.


_LEVELS: Final = 4
_LIMIT: Final = 1_000


def leftovers_among(entries: Sequence[Entry], closings: Sequence[int | None]) -> set[Entry]:
    """Return those of some disposed resources that only left-over variables reference.

    Parameters
    ----------
    entries : sequence of Entry
        Disposed resources.
    closings : sequence of int or None
        For each, how many scopes had been closed when it was disposed.
    """
    anchors = {entry: anchor for entry in entries if (anchor := anchor_entry_of(entry)) is not entry}
    if anchors:
        # The tuple is rebuilt for each request, so search for its anchor instead.
        asked = {anchors.get(entry, entry): closing for entry, closing in zip(entries, closings, strict=True)}
        left = leftovers_among(list(asked), list(asked.values()))
        return {entry for entry in entries if anchors.get(entry, entry) in left}
    keys = {entry.key for entry in entries if entry() is not None}
    names = count_names(keys)
    left = {entry for entry in entries if 0 < references_to(entry) == names.get(entry.key, 0)}
    rest = [(entry, closing) for entry, closing in zip(entries, closings, strict=True) if entry not in left]
    if 0 < len(rest) <= _LIMIT:
        left |= _Neighbourhood([entry for entry, _ in rest]).left_over(dict(rest))
    return left


@final
class _Neighbourhood:
    """The containers around some resources, as far as variables explain every reference to them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        # The search has no other reference to any of them.
        self._nodes: dict[int, object] = {}
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
        self._unexplained = {key: self._references(key) - names.get(key, 0) for key in self._nodes}

    def left_over(self, closings: dict[Entry, int | None]) -> set[Entry]:
        """Return the resources that only variables lead to.

        The way may lead through containers of what one closing disposed.
        """
        outermost: dict[int, set[int | None]] = {}
        candidates: dict[Entry, set[int]] = {}
        for entry, closing in closings.items():
            if entry.key not in self._nodes or not self._explained(entry.key, frozenset()):
                continue
            candidates[entry] = above = set(self._above(entry.key))
            for key in above:
                outermost.setdefault(key, set()).add(closing)
        return {
            entry
            for entry, above in candidates.items()
            if closings[entry] is not None and all(len(outermost[key]) == 1 for key in above)
        }

    def _add_holders(self, keys: list[int]) -> list[int]:
        things = tuple(self._nodes[key] for key in keys)
        added: list[int] = []
        wanted = set(keys)
        for holder in gc.get_referrers(*things) if things else ():
            if holder is self._nodes:
                continue
            # First: a framework that is asked for the attributes of an object has it make a dict of
            # them.
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

    def _explained(self, key: int, below: frozenset[int]) -> bool:
        holders = self._holders.get(key, [])
        if key in below or self._unexplained[key] != len(holders):
            return False
        return all(self._explained(holder, below | {key}) for holder in set(holders))

    def _above(self, key: int) -> Iterator[int]:
        for holder in set(self._holders.get(key, [])):
            yield holder
            yield from self._above(holder)


# Memory that has outlived its scope and that only a left-over variable references is no leak at the
# end of a program.
#
# After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still references the
# arrays of the last batch. Memory is left over if variables, and containers of what was born
# between the same two closings, account for every reference to it. A container must belong to a
# scope that was not the first of its name: a list that is filled in a scope which is entered once
# is no left-over batch.


_AT_MOST: Final = 10_000
_VARIABLES: Final = ("module ", "frame ")
_BASES: Final = (".base", "._base")


def left_over_memory(search: Search, born: Mapping[UnheldMemory, Row], passes: Mapping[str, int]) -> set[UnheldMemory]:
    """Return the memory that only left-over variables reference.

    Parameters
    ----------
    search : Search
        What has found who holds it, and is not closed yet.
    born : mapping
        The memory, and the row of its birth.
    passes : mapping of str to int
        How many passes of each name there were.
    """
    ways = {memory: way for memory in list(born)[:_AT_MOST] if (way := _way_from_variable(search, memory))}
    names = count_names({key for way in ways.values() for key in way})
    left: set[UnheldMemory] = set()
    closings: dict[int, set[int]] = {}
    for memory, way in ways.items():
        in_container = framework_of(class_of(search.ours[way[0]])) is None
        if _is_explained(search, way, names) and (not in_container or _was_in_loop(born[memory], passes)):
            left.add(memory)
            if in_container:
                closings.setdefault(way[0], set()).add(born[memory].closings)
    return {memory for memory in left if len(closings.get(ways[memory][0], ())) <= 1}


def _way_from_variable(search: Search, memory: UnheldMemory) -> list[int]:
    """Return the ids of the objects from a variable to some memory, and on to its object.

    Empty where it begins with no variable, or leads through a graph.
    """
    way: list[int] = []
    for start, chain, step in search.ways.to(memory):
        if step or way or not start.startswith(_VARIABLES):
            return []
        way = [id(thing) for thing in chain]
        last: object = chain[-1]
        while last is not None:
            known = framework_of(class_of(last))
            last = (
                None
                if known is None
                else next((one for step, one in known[0].references(last) if step in _BASES), None)
            )
            if last is not None:
                search.ours[id(last)] = last
                way.append(id(last))
    return way


def _was_in_loop(birth: Row, passes: Mapping[str, int]) -> bool:
    # The passes of a scope without a name are counted by its line, which a birth does not know.
    scope = birth.scope
    return passes.get(scope, 0) > 1 if scope else birth.closings > 0


def _is_explained(search: Search, way: Sequence[int], names: Mapping[int, int]) -> bool:
    """Return whether variables, and the objects on the way, account for every reference."""
    for place, key in enumerate(way):
        cls = class_of(search.ours[key])
        known = framework_of(cls)
        if (known is None or known[1] != "tensor") and not is_container(search.ours[key]):
            return False
        # One reference is the search's, one the argument's.
        if sys.getrefcount(search.ours[key]) - 2 != names.get(key, 0) + (place > 0):
            return False
    return True


# The holders of a subject, and the reason why it is there.


Reason = Literal["held", "suspended", "exception", "graph", "cycle", "owned", "unfinished", "unknown"]
"""By what something is held: by variables and what they lead to, only by suspended generators and
coroutines, only by exceptions, only by graphs, by a cycle that nothing leads to, by its scope, or
the search ended early or in vain.
"""

SEVERAL_KEYS: Final = "[...]"
"""What stands in a chain for keys by which several chains differ."""
NOT_FOUND: Final = "not found: code of an extension, or an expression that is being evaluated"
OWNED: Final = "its scope, because it cannot be weakly referenced"

_T = TypeVar("_T")

_CHAINS: Final = 3
_LOOKED_AT: Final = 12
_CONTAINERS: Final = (list, tuple, set, frozenset, dict, deque, OrderedDict, defaultdict)
_TABLES: Final = 3
_INTO_A_GRAPH: Final = ".grad_fn."
_PERIODS: Final = 2 * 3 * 5
_IN_CYCLES: Final = 10
_MOST: Final = 0.75
_FEW: Final = 1 / 6
_REASONS: Final[dict[int, Reason]] = {
    EDGES_PLAIN: "held",
    SUSPENDED: "suspended",
    IN_EXCEPTION: "exception",
    IN_GRAPH: "graph",
}
_KEYS: Final = re.compile(r"(?:(?: … )?\.next_functions\[[^\[\]]*\]\[0\])+|\[-?\d+\]|:\d+|(?<=^task ')Task-\d+(?=')")
_ANY_KEY: Final = re.compile(r"\[[^\[\]]+\]")
_STEP: Final = r"(\.[\w<>]+|\['[^'\]]*'\]|, closure of [^,]+, cell '\w+')"
_AGAIN: Final = re.compile(rf"{_STEP}(?:(?: … )?\1)+(?![\w<>])")
_MANY_TIMES: Final = re.compile(rf"{_STEP}(?:(?: … )?\1){{3,}}(?![\w<>])")


@final
@dataclass(slots=True)
class _HeldBy:
    reason: Reason
    cycle: Cycle | None = None


@final
class Holders:
    """Finds the holders of some subjects when its block is entered, and answers inside it.

    Parameters
    ----------
    groups : sequence of sequence of Entry or UnheldMemory
        Resources, live or disposed, and storages; those that belong together in one sequence,
        oldest first.
    object_limit : int
        How many objects are met at most; ten times as many references are looked at. No clock is
        read, so that the answers do not depend on how busy the machine is.
    sizes : dict, optional
        Storages with their bytes, for `used_nbytes`.
    meets_all : bool, default False
        Whether the search goes on to its end when everything is found: `retained` needs all that
        variables lead to.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Subject]],
        *,
        object_limit: int,
        sizes: dict[Hashable, int] | None = None,
        meets_all: bool = False,
    ) -> None:
        install_imported()
        self._object_limit = object_limit
        # The tuple is rebuilt for each request, so search for its anchor instead.
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
        )
        self._held_by: dict[Subject, _HeldBy] = {}
        # Whether the search for cycles ended before every group was asked.
        self._cycles_left = False

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
        if not search.stopped and search.left:
            search.from_roots(library_roots(), libraries=True)
        if not search.stopped and search.left:
            self._look_for_cycles()
        for libraries in (False, True):
            # What may be in a cycle is not reported as held by a member of it.
            if not search.stopped and not self._cycles_left and search.left:
                wanted = {subject.key for subject in search.left if isinstance(subject, Entry)}
                search.from_roots(typed_roots(wanted | search.ours.keys(), libraries=libraries), libraries=libraries)
        for subject in search.left:
            reason: Reason = "unfinished" if search.stopped or self._cycles_left else "unknown"
            self._held_by.setdefault(
                subject, _HeldBy("owned" if isinstance(subject, HeldEntry) and subject.is_held else reason)
            )

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
        at, stages = self._search.at, self._search.stages
        for subject in subjects:
            asked = self._anchors.get(subject, subject) if self._anchors else subject
            answer = self._held_by.get(asked) if self._held_by else None
            if answer is None:
                stage = EDGES_PLAIN if asked in at else stages.get(asked)
                reasons.append("unknown" if stage is None else _REASONS[stage])
            else:
                reasons.append(answer.reason)
        return reasons

    def left_over(self, born: Mapping[UnheldMemory, Row], passes: Mapping[str, int]) -> set[UnheldMemory]:
        """Return the memory that only left-over variables reference: see `left_over_memory`."""
        return left_over_memory(self._search, born, passes) if born else set()

    def retained(self, pieces: Sequence[Piece]) -> list[Retained]:
        """Return what retains some pieces of memory: see `retained_by`."""
        return retained_by(self._search, pieces)

    def cycle_of(self, subjects: Sequence[Subject]) -> Cycle | None:
        """Return the cycle that keeps the first subject that has one, or None."""
        for subject in subjects:
            answer = self._held_by.get(self._anchors.get(subject, subject))
            if answer is not None and answer.cycle is not None:
                return answer.cycle
        return None

    def chains_of(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """Return how code reaches some subjects that are held in the same way.

        The chains that reach most of them come first, and of those the chains of the oldest. What
        reaches few of many, as a left-over variable reaches the last, is left out.

        At most three chains, which differ in more than an index. Those that differ by one of many
        keys are one, and so are those that differ by how often a step is taken, as in a linked
        list.
        """
        alike: dict[str, dict[str, str]] = {}
        reached: Counter[str] = Counter()
        asked = _spread(subjects)
        for subject in asked:
            for chain in self._chains_of_one(self._anchors.get(subject, subject)):
                # One way into a graph tells as much as another.
                text = _AGAIN.sub(r"\1", _KEYS.sub("[]", chain.partition(_INTO_A_GRAPH)[0]))
                way = _ANY_KEY.sub("[]", text)
                reached.update({text, way})
                alike.setdefault(way, {}).setdefault(text, chain)
        enough = _FEW * len(asked)
        told: list[str] = []
        ways = [way for way in alike if reached[way] >= enough] or [*alike]
        for way in sorted(ways, key=lambda way: -reached[way]):
            texts = alike[way]
            chains = [chain for text, chain in texts.items() if reached[text] >= enough]
            told += _without_keys(chains or [*texts.values()])
        told = told[:_CHAINS]
        return tuple(_MANY_TIMES.sub(lambda step: f"{step[1]} … {step[1].removeprefix(', ')}", chain) for chain in told)

    def known_of(self, subjects: Sequence[Subject]) -> KnownLeak | None:
        """Return the known leak of a library that holds some subjects; None where it is not theirs.

        Something else may hold a few of them, as a left-over variable holds the last.
        """
        asked = _spread(subjects)
        found = [known for subject in asked if (known := self._known_of_one(subject)) is not None]
        return found[0] if found and len(found) >= _MOST * len(asked) else None

    def are_in_a_bounded_deque(self, subjects: Sequence[Subject], owners: int | None = None) -> bool:
        """Return whether subjects are, or are held by, an item each of a deque with a ``maxlen``.

        A few of them need not be. What one item collects may grow, and so may what something else
        has as well.

        Parameters
        ----------
        owners : int, optional
            Of how many things they are parts, which are the items then.
        """
        items: dict[int, set[int]] = {}
        # For each deque, how often its items refer to what they have.
        inside: dict[int, Counter[int]] = {}
        asked = _spread(subjects)
        for subject in asked:
            key = self._search.at.get(subject)
            # One reference is the search's, one the argument's; the ways have others.
            references = 0 if key is None else sys.getrefcount(self._search.ours[key]) - 2
            ways = self._search.ways.to(self._anchors.get(subject, subject))
            found = [place for _, chain, _ in ways if (place := _place_in_a_bounded_deque(chain)) is not None]
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

        Those that were made one after another are looked at: in the beginning, the middle and the
        end. A table of tables has one container of all at every second level, and each item of its
        own has its container alone.

        Parameters
        ----------
        subjects : sequence of Subject
            In the order in which they were made.
        """
        part = _LOOKED_AT if len(subjects) >= 3 * _LOOKED_AT else len(subjects) // 3
        half = (len(subjects) - part) // 2
        asked = [*subjects[:part], *subjects[half : half + part], *subjects[len(subjects) - part :]]
        # Of each level, counted from the subject, the containers there.
        levels: dict[int, set[int]] = {}
        for subject in asked:
            _, chain, _ = next(iter(self._search.ways.to(self._anchors.get(subject, subject))), ("", (), ""))
            containers = [thing for thing in reversed(chain) if class_of(thing) in _CONTAINERS]
            for level, container in enumerate(containers):
                levels.setdefault(level, set()).add(id(container))
        return any(_TABLES <= len(those) <= len(asked) // 2 for those in levels.values())

    def remedy_of(self, subjects: Sequence[Subject]) -> str:
        """Return what ends the holders of some subjects, if that is known; or nothing."""
        remedies: dict[str, int] = {}
        asked = _spread(subjects)
        for subject in asked:
            answer = self._held_by.get(subject)
            if answer is not None:
                found = set[str]() if answer.cycle is None else {remedy_on((), answer.cycle.loop)}
            else:
                ways = self._search.ways.to(self._anchors.get(subject, subject))
                found = {remedy_on(chain, spelled(chain, start) + step) for start, chain, step in ways}
            if len(found) == 1:
                [remedy] = found
                remedies[remedy] = remedies.get(remedy, 0) + 1
        return next((remedy for remedy, times in remedies.items() if times >= _MOST * len(asked)), "")

    def _known_of_one(self, subject: Subject) -> KnownLeak | None:
        answer = self._held_by.get(subject)
        if answer is not None:
            return None if answer.cycle is None else answer.cycle.known
        ways = self._search.ways.to(self._anchors.get(subject, subject))
        found = [known_on(chain, spelled(chain, start) + step) for start, chain, step in ways]
        return None if None in found or not found else found[0]

    def passes_of(self, subjects: Sequence[Subject]) -> int:
        """Return over how many passes of a loop the graph of a tensor reaches.

        Only the newest of the tensors are examined.
        """
        newest = subjects[-_CHAINS:]
        return max((self._search.ways.passes_of(self._anchors.get(subject, subject)) for subject in newest), default=0)

    def graph_nbytes_of(self, subjects: Sequence[Subject]) -> int:
        """Return the bytes of the largest graph of some tensors. Only the newest are examined."""
        newest = subjects[-_CHAINS:]
        ways = self._search.ways
        return max((ways.graph_nbytes_of(self._anchors.get(subject, subject)) for subject in newest), default=0)

    def node_nbytes_of(self, subjects: Sequence[Subject], carriers: Container[int]) -> int:
        """Return about how many bytes the nodes of graphs take that each of some tensors adds.

        Those in the middle are examined: a variable may have the last, with its graph, of which the
        others were detached.

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
        """Return after which shares of the steps of a loop graphs of tensors were made.

        With each stands whether nothing can go back through such a graph any more. They are in
        order, each once. Only some of the tensors are examined.
        """
        steps: set[tuple[float, bool]] = set()
        for tensor in _spread(tensors):
            known = framework_of(class_of(tensor))
            step = None if known is None else known[0].step_of_graph(tensor)
            if step is not None:
                steps.add(step)
        return sorted(steps)

    def nbytes_of_graphs(self, tensors: Sequence[object]) -> int:
        """Return about how many bytes the graphs of some tensors have.

        They are what these saved, each storage once, and nodes, as many for each tensor as for one
        in the middle.
        """
        by_framework: dict[Framework, list[object]] = {}
        for tensor in tensors:
            known = framework_of(class_of(tensor))
            if known is not None:
                by_framework.setdefault(known[0], []).append(tensor)
        nbytes = 0
        for framework, those in by_framework.items():
            middle = len(those) // 2
            nodes_nbytes = framework.node_nbytes_behind(those[max(0, middle - 1) : middle + 1])
            nbytes += framework.graph_nbytes_behind(those) + nodes_nbytes * len(those)
        return nbytes

    def is_of_evaluation(self, subjects: Sequence[Subject]) -> bool:
        """Return whether the graph that holds some subjects is that of a model in eval mode."""
        ways = self._search.ways
        return any(ways.is_of_evaluation(self._anchors.get(subject, subject)) for subject in subjects[-_CHAINS:])

    def carriers_of(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """Return the tensors whose graphs hold some subjects: at most three.

        One whose graph holds few of many, as that of a left-over variable does, is left out.
        """
        carriers: dict[str, str] = {}
        reached: Counter[str] = Counter()
        asked = _spread(subjects)
        for subject in asked:
            for carrier in self._search.ways.carriers_of(self._anchors.get(subject, subject)):
                text = _KEYS.sub("[]", carrier)
                reached[text] += 1
                carriers.setdefault(text, carrier)
        enough = [carrier for text, carrier in carriers.items() if reached[text] >= _FEW * len(asked)]
        return tuple(enough or carriers.values())[:_CHAINS]

    def _chains_of_one(self, subject: Subject) -> list[str]:
        answer = self._held_by.get(subject)
        if answer is None:
            return self._search.ways.chains_of(subject)
        if answer.cycle is not None:
            return [str(answer.cycle)]
        if answer.reason == "owned":
            return [OWNED]
        if answer.reason == "unfinished":
            return [unfinished_text(self._object_limit)]
        return [NOT_FOUND]

    def _look_for_cycles(self) -> None:
        search = self._search
        left = set(search.left)
        # A look at an object costs little here.
        allowance = Allowance(self._object_limit * _IN_CYCLES)
        wanted = {subject.identity for subject in left if not isinstance(subject, Entry)}
        garbage = Garbage(search.ours, allowance, wanted)
        for group in self._groups:
            those = [
                subject
                for subject in group
                if subject in left and (isinstance(subject, Entry) or subject.identity in garbage.tensors)
            ]
            target = _target_of(those[0], garbage) if those else None
            cycle = None if target is None else garbage.cycle_around(target)
            if cycle is not None:
                targets = (_target_of(subject, garbage) for subject in _spread(those))
                times = max(1, garbage.islands_of(targets))
                cycle = replace(cycle, times=times, stays=not gc.isenabled())
                for subject in those:
                    # The others of the group are as unreachable as the first.
                    self._held_by[subject] = _HeldBy("cycle", cycle)
                    search.settle(subject)
        self._cycles_left = allowance.is_spent


def _target_of(subject: Subject, garbage: Garbage) -> object:
    """Return the resource, or a tensor over the memory, that is found in garbage; None if gone."""
    return subject() if isinstance(subject, Entry) else garbage.tensors[subject.identity]


def _place_in_a_bounded_deque(chain: Sequence[object]) -> tuple[deque[object], object] | None:
    """Return the first such deque that a chain leads through, and the item that it leads to."""
    for thing, following in pairwise(chain):
        if issubclass(class_of(thing), deque):
            found = cast("deque[object]", thing)
            if found.maxlen is not None:
                return found, following
    return None


def unfinished_text(object_limit: int) -> str:
    """Return what is reported of the holder of something that a search did not come to."""
    return f"not found within {object_limit:,} objects" if object_limit else "not found: not searched for"


def _without_keys(chains: Sequence[str]) -> Sequence[str]:
    """Return chains that differ by keys alone as one, if they are too many to be listed."""
    if len(chains) <= _CHAINS:
        return chains
    places = iter([*zip(*map(_ANY_KEY.findall, chains), strict=False)])

    def told(match: re.Match[str]) -> str:
        return match[0] if len(set(next(places, ()))) == 1 else SEVERAL_KEYS

    return [_ANY_KEY.sub(told, chains[0])]


def _spread(those: Sequence[_T]) -> Sequence[_T]:
    """Return the first one, and others spread evenly over the rest."""
    step = max(1, len(those) // _LOOKED_AT)
    while gcd(step, _PERIODS) > 1:
        # What a loop keeps at each second or tenth turn is not all that is looked at.
        step -= 1
    return those[::step]
