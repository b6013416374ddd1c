"""Disposed resources that only a left-over variable still names: no leak, for they hold no memory and do not grow.

After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still names the last batch, which is
disposed. That is what correct code looks like. Something is reported as disposed under a live reference where anything
else refers to it, or where a container holds what several closings of scopes disposed, which is how a history grows.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Final, final

from .._entry import Entry, anchor_entry_of
from ._edges import is_container, referents_of
from ._references import references_to
from ._roots import count_names

__all__ = ["leftovers_among"]

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
