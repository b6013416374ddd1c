"""Who still holds something, and in which way: the reason why it is there."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, final

from .._arrivals import AWAITED, look_for_arrivals
from .._entry import AnchoredEntry, Entry, StrongEntry, anchor_entry_of
from ._cycles import Cycle, cycle_around, tensors_with_memory
from ._edges import EDGES_PLAIN, IN_EXCEPTION, IN_GRAPH, SUSPENDED
from ._leftover_memory import left_over_memory
from ._log import Row
from ._roots import library_roots, typed_roots, user_roots
from ._search import Search
from ._subject import Subject, UnheldMemory

__all__ = ["Holders", "Reason"]

Reason = Literal["held", "suspended", "exception", "graph", "cycle", "owned", "unfinished", "unknown"]
"""By what something is held: by variables and what they lead to, only by suspended generators and coroutines, only by
exceptions, only by graphs, by a cycle that nothing leads to, by its scope, or the search ended early or in vain."""

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
        Resources, live or disposed, and storages; those that belong together in one sequence, oldest first.
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
            look_for_arrivals()
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
            # A cycle is told by a look at the neighbourhood; only what is no cycle is worth a walk through all
            # libraries.
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
