"""Who still holds something and in which way; what only a left-over variable names is no leak."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, final

from ...scopes.identity import AnchoredEntry, Entry, StrongEntry, anchor_entry_of
from ...scopes.kinds import AWAITED, install_imported
from ..births.log import LOG, Row, Subject, UnheldMemory
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
from .roots import count_names, library_roots, typed_roots, user_roots
from .search import Cycle, Search, cycle_around, tensors_with_memory

__all__ = [
    "Holders",
    "Reason",
    "left_over_memory",
    "leftovers_among",
]

# Disposed resources that only a left-over variable still names: no leak, for they hold no memory
# and do not grow.
#
# After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still names the last
# batch, which is disposed. That is what correct code looks like. Something is reported as disposed
# under a live reference where anything else refers to it, or where a container holds what several
# closings of scopes disposed, which is how a history grows.


_LEVELS: Final = 4
_LIMIT: Final = 1_000


def leftovers_among(entries: Sequence[Entry], closings: Sequence[int | None]) -> set[Entry]:
    """Those of some disposed resources that are left over.

    Parameters
    ----------
    entries : sequence of Entry
        Disposed resources.
    closings : sequence of int or None
        For each, how many scopes had been closed when it was disposed.
    """
    anchors = {entry: anchor for entry in entries if (anchor := anchor_entry_of(entry)) is not entry}
    if anchors:
        # A tuple is rebuilt whenever it is asked for: what leads to its anchor leads to it.
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
        # The only reference of ours to each.
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
        """The resources to which only variables lead, through containers of what one closing disposed."""
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
            if holder is self._nodes or not is_container(holder):
                continue
            inside = [id(child) for child in referents_of(holder) if id(child) in wanted]
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


# Memory that has outlived its scope, and that only a left-over variable still names: no leak at the
# end of a program.
#
# After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still names the arrays
# of the last batch. As for resources (see `holders`), something is no more than left over where
# variables, and containers of what was born between the same two closings, explain every reference
# to it. Where there is a container, it must be of a scope that was not the first of its kind: a
# list that is filled in a scope which is there once is no left-over batch.


_AT_MOST: Final = 10_000
_VARIABLES: Final = ("module ", "frame ")
_BASES: Final = (".base", "._base")


def left_over_memory(search: Search, born: Mapping[UnheldMemory, Row]) -> set[UnheldMemory]:
    """Those of some memory that are left over.

    Parameters
    ----------
    search : Search
        What has found who holds it, and is not closed yet.
    born : mapping
        The memory, and the row of its birth.
    """
    ways = {memory: way for memory in list(born)[:_AT_MOST] if (way := _way_from_variable(search, memory))}
    names = count_names({key for way in ways.values() for key in way})
    passes: dict[str, int] = LOG.passes()
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
    """What leads from a variable to memory, and on to the object that the memory is of: by ``id``.

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
            last = None if known is None else next((one for step, one in known[0].edges(last) if step in _BASES), None)
            if last is not None:
                search.ours[id(last)] = last
                way.append(id(last))
    return way


def _was_in_loop(birth: Row, passes: Mapping[str, int]) -> bool:
    # The passes of a scope without a name are counted by its line, which a birth does not know.
    scope = birth.scope
    return passes.get(scope, 0) > 1 if scope else birth.closings > 0


def _is_explained(search: Search, way: Sequence[int], names: Mapping[int, int]) -> bool:
    """Whether variables, and each thing on the way for the next, hold all of them and nothing else does."""
    for place, key in enumerate(way):
        cls = class_of(search.ours[key])
        known = framework_of(cls)
        if (known is None or known[1] != "tensor") and not is_container(search.ours[key]):
            return False
        # One reference is the search's, one the argument's.
        if sys.getrefcount(search.ours[key]) - 2 != names.get(key, 0) + (place > 0):
            return False
    return True


# Who still holds something, and in which way: the reason why it is there.


Reason = Literal["held", "suspended", "exception", "graph", "cycle", "owned", "unfinished", "unknown"]
"""By what something is held: by variables and what they lead to, only by suspended generators and coroutines, only by
exceptions, only by graphs, by a cycle that nothing leads to, by its scope, or the search ended
early or in vain.
"""

NOT_FOUND: Final = "not found: code of an extension, or an expression that is being evaluated"
OWNED: Final = "its scope, because it cannot be weakly referenced"

_CHAINS: Final = 3
_LOOKED_AT: Final = 12
_CYCLES: Final = 16
_CYCLES_SHARE: Final = 0.4
_REASONS: Final[dict[int, Reason]] = {
    EDGES_PLAIN: "held",
    SUSPENDED: "suspended",
    IN_EXCEPTION: "exception",
    IN_GRAPH: "graph",
}
_KEYS: Final = re.compile(r"(?:(?: … )?\.next_functions\[[^\[\]]*\]\[0\])+|\[-?\d+\]|:\d+")


@final
@dataclass(slots=True)
class _Told:
    reason: Reason
    cycle: Cycle | None = None


@final
class Holders:
    """Finds what holds some things when its block is entered, and can be asked for it until the block is left.

    Parameters
    ----------
    groups : sequence of sequence of Entry or UnheldMemory
        Resources, live or disposed, and storages; those that belong together in one sequence,
        oldest first.
    time_limit_s : float
        When to give up.
    object_limit : int
        How many objects are looked at.
    sizes : dict, optional
        Storages with their bytes, for `used_nbytes`.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Subject]],
        *,
        time_limit_s: float,
        object_limit: int,
        sizes: dict[Hashable, int] | None = None,
    ) -> None:
        if AWAITED:
            install_imported()
        self._time_limit_s = time_limit_s
        self._object_limit = object_limit
        self._started_at = time.monotonic()
        # A tuple is rebuilt whenever it is asked for: who holds its anchor holds it.
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
            self._started_at + time_limit_s,
            object_limit,
            sizes or {},
        )
        self._told: dict[Subject, _Told] = {}

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
        search.from_roots(user_roots(), libraries=False)
        if not search.stopped and search.left:
            # A cycle is told by a look at the neighbourhood; only what is no cycle is worth a walk
            # through all libraries.
            self._look_for_cycles()
        if not search.stopped and search.left:
            search.from_roots(library_roots(), libraries=True)
        if not search.stopped and search.left:
            # Memory that is known by itself is in a cycle only if nothing at all leads to it.
            self._look_for_cycles_of_memory()
        for libraries in (False, True):
            if not search.stopped and search.left:
                wanted = {subject.key for subject in search.left if isinstance(subject, Entry)}
                search.from_roots(typed_roots(wanted | search.ours.keys(), libraries=libraries), libraries=libraries)
        for subject in search.left:
            reason: Reason = "unfinished" if search.stopped else "unknown"
            self._told.setdefault(subject, _Told("owned" if type(subject) is StrongEntry else reason))

    def used_nbytes(self, identity: Hashable) -> int | None:
        """The bytes of a storage that was asked for which the objects that were met use; None where some were not."""
        return None if self._search.cut_short else self._search.used.get(identity, 0)

    def reasons_of(self, subjects: Sequence[Subject]) -> list[Reason]:
        """By what each of some things is held."""
        reasons: list[Reason] = []
        at, storeys = self._search.at, self._search.storeys
        for subject in subjects:
            asked = self._anchors.get(subject, subject) if self._anchors else subject
            told = self._told.get(asked) if self._told else None
            if told is None:
                storey = EDGES_PLAIN if asked in at else storeys.get(asked)
                reasons.append("unknown" if storey is None else _REASONS[storey])
            else:
                reasons.append(told.reason)
        return reasons

    def left_over(self, born: Mapping[UnheldMemory, Row]) -> set[UnheldMemory]:
        """Those of some memory that only left-over variables name: see `left_over_memory`."""
        return left_over_memory(self._search, born) if born else set()

    def cycle_of(self, subjects: Sequence[Subject]) -> Cycle | None:
        """The cycle that keeps the first of some things of which one is known."""
        for subject in subjects:
            told = self._told.get(self._anchors.get(subject, subject))
            if told is not None and told.cycle is not None:
                return told.cycle
        return None

    def chains_of(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """How code reaches some things that are held in the same way, those of the first things first.

        At most three chains, which differ in more than an index.
        """
        chains: dict[str, str] = {}
        for subject in _spread(subjects):
            for chain in self._chains_of_one(self._anchors.get(subject, subject)):
                chains.setdefault(_KEYS.sub("[]", chain), chain)
            if len(chains) >= _CHAINS:
                break
        return tuple(chains.values())[:_CHAINS]

    def passes_of(self, subjects: Sequence[Subject]) -> int:
        """Over how many passes of a loop the graph of one of some tensors reaches; the newest are looked at."""
        newest = subjects[-_CHAINS:]
        return max((self._search.ways.passes_of(self._anchors.get(subject, subject)) for subject in newest), default=0)

    def carriers_of(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """The tensors whose graphs hold some things: at most three."""
        carriers: dict[str, str] = {}
        for subject in _spread(subjects):
            for carrier in self._search.ways.carriers_of(self._anchors.get(subject, subject)):
                carriers.setdefault(_KEYS.sub("[]", carrier), carrier)
            if len(carriers) >= _CHAINS:
                break
        return tuple(carriers.values())[:_CHAINS]

    def _chains_of_one(self, subject: Subject) -> list[str]:
        told = self._told.get(subject)
        if told is None:
            return self._search.ways.chains_of(subject)
        if told.cycle is not None:
            return [str(told.cycle)]
        if told.reason == "owned":
            return [OWNED]
        if told.reason == "unfinished":
            return [f"not found within {self._time_limit_s:g} s and {self._object_limit:,} objects"]
        return [NOT_FOUND]

    def _look_for_cycles(self) -> None:
        search = self._search
        now = time.monotonic()
        deadline = now + (search.deadline - now) * _CYCLES_SHARE
        left = set(search.left)
        asked = 0
        for group in self._groups:
            those = [subject for subject in group if subject in left and isinstance(subject, Entry)]
            if not those or asked >= _CYCLES:
                continue
            asked += 1
            target = those[0]()
            if target is not None:
                self._tell_cycle(cycle_around(target, deadline, search.ours), those)

    def _look_for_cycles_of_memory(self) -> None:
        search = self._search
        left: dict[Subject, Hashable] = {
            subject: subject.identity for subject in search.left if not isinstance(subject, Entry)
        }
        if not left:
            return
        now = time.monotonic()
        deadline = now + (search.deadline - now) * _CYCLES_SHARE
        found = tensors_with_memory(set(left.values()), search.ours, deadline)
        asked = 0
        for group in self._groups:
            those = [subject for subject in group if left.get(subject) in found]
            if not those or asked >= _CYCLES:
                continue
            asked += 1
            target = search.ours[found[left[those[0]]]]
            self._tell_cycle(cycle_around(target, deadline, search.ours), those)
        for key in found.values():
            # Nothing led there yet: the search goes on.
            search.ours.pop(key, None)

    def _tell_cycle(self, cycle: Cycle | None, those: Sequence[Subject]) -> None:
        if cycle is not None:
            for subject in those:
                # The others of the group are no more reachable than the first.
                self._told[subject] = _Told("cycle", cycle)
                self._search.settle(subject)


def _spread(subjects: Sequence[Subject]) -> Sequence[Subject]:
    """The first of some things, and others from all over them."""
    step = max(1, len(subjects) // _LOOKED_AT)
    return subjects[::step]
