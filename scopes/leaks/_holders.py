"""Who still holds a resource: one chain from something a person can find, searched forward, breadth first.

Forward, because arrays and the dicts and tuples that hold only such are unknown to ``gc.get_referrers``. What no root
reaches is looked at from behind, for a reference cycle.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, final

from .._entry import Entry, StrongEntry, anchor_entry_of
from ._cycles import cycle_around
from ._edges import is_module, namespace_of, referents_of
from ._paths import spelled
from ._roots import Root, count_names, is_of_library, library_roots, user_roots

__all__ = ["find_holders", "references_to"]

NOT_FOUND: Final = "not found: code of an extension, or an expression that is being evaluated"
OWNED: Final = "its scope, because it cannot be weakly referenced"
_LOOK_AT_CLOCK: Final = 512


def find_holders(entries: Sequence[Entry], *, time_limit_s: float, object_limit: int) -> dict[Entry, str]:
    """One holder of each resource that is still there, printed as code.

    Parameters
    ----------
    entries : sequence of Entry
        The resources, live or disposed.
    time_limit_s : float
        When to give up.
    object_limit : int
        How many objects are looked at.

    Returns
    -------
    dict
        A text for every entry. Where the search ended too early or found nothing, the text says so.
    """
    anchors = {entry: anchor for entry in entries if (anchor := anchor_entry_of(entry)) is not entry}
    if anchors:
        # A tuple is rebuilt whenever it is asked for: who holds its anchor holds it.
        asked = dict.fromkeys(anchors.get(entry, entry) for entry in entries)
        found_for = find_holders(list(asked), time_limit_s=time_limit_s, object_limit=object_limit)
        return {entry: found_for[anchors.get(entry, entry)] for entry in entries}
    search = _Search(entries, time.monotonic() + time_limit_s, object_limit)
    search.from_roots(user_roots(), libraries=False)
    search.settle_for_names()
    if search.wanted and not search.stopped:
        # A cycle is told by a look at the neighbourhood; only what is no cycle is worth a walk through all libraries.
        search.forget_nodes_reachable()
        for entry in list(search.wanted.values()):
            found = cycle_around(entry, search.deadline)
            if found is not None:
                search.found[entry] = found
                del search.wanted[entry.key]
    if search.wanted and not search.stopped:
        search.from_roots(library_roots(), libraries=True)
        search.settle_for_names()
    for entry in search.wanted.values():
        if type(entry) is StrongEntry:
            search.found[entry] = OWNED
        elif search.stopped:
            search.found[entry] = f"not found within {time_limit_s:g} s and {object_limit:,} objects"
        else:
            search.found[entry] = NOT_FOUND
    return search.found


@final
class _Search:
    """One search. It holds what it has met, so that no address comes back under it, and is dropped afterwards."""

    def __init__(self, entries: Sequence[Entry], deadline: float, object_limit: int) -> None:
        self.deadline = deadline
        self.object_limit = object_limit
        self.wanted: dict[int, Entry] = {entry.key: entry for entry in entries if entry() is not None}
        self.found: dict[Entry, str] = {}
        self.stopped = False
        self._met: dict[int, object] = {}
        # For each object met, the one that led to it, or how a root is written.
        self._links: dict[int, int | str] = {}
        self._named: dict[Entry, str] = {}
        names = count_names(self.wanted)
        # A variable that is the only holder is the answer; any other variable may be a passer-by.
        self._only_names = {key for key, entry in self.wanted.items() if references_to(entry) == names.get(key, 0)}

    def from_roots(self, roots: Iterable[Root], *, libraries: bool) -> None:
        """Search everything that is reached from some roots, until all is found or a limit is met."""
        pending: deque[object] = deque()
        thing: object = None
        for name, thing in roots:
            entry = self.wanted.get(id(thing))
            if entry is not None and entry() is thing:
                self._named.setdefault(entry, name)
                if id(thing) in self._only_names:
                    self._settle(entry, name)
                    continue
            if is_module(thing) or (not libraries and _is_library_class(thing)):
                continue
            if id(thing) not in self._met:
                self._met[id(thing)] = thing
                if entry is None:
                    self._links[id(thing)] = name
                    pending.append(thing)
        thing = None
        steps = 0
        while pending and self.wanted:
            node = pending.popleft()
            steps += 1
            if (steps % _LOOK_AT_CLOCK == 0 and time.monotonic() > self.deadline) or len(self._met) > self.object_limit:
                self.stopped = True
                return
            for child in referents_of(node):
                key = id(child)
                entry = self.wanted.get(key)
                if entry is not None and entry() is child:
                    self._links[key] = id(node)
                    self._settle(entry, self._spelled(child))
                elif key in self._met or (not libraries and _is_library_class(child)):
                    continue
                else:
                    self._links.setdefault(key, id(node))
                self._met[key] = child
                pending.append(child)

    def settle_for_names(self) -> None:
        """Take a variable for the holder of what nothing else was found to hold."""
        for entry, name in self._named.items():
            if entry.key in self.wanted:
                self._settle(entry, name)

    def forget_nodes_reachable(self) -> None:
        """Let go of what has been met, so that it does not look like a holder from behind."""
        self._met.clear()
        self._links.clear()

    def _settle(self, entry: Entry, holder: str) -> None:
        self.found[entry] = holder
        self.wanted.pop(entry.key, None)

    def _spelled(self, target: object) -> str:
        chain = [target]
        link = self._links[id(target)]
        while type(link) is int:
            chain.append(self._met[link])
            link = self._links[link]
        chain.reverse()
        return spelled(chain, str(link))


def references_to(entry: Entry) -> int:
    """How many strong references there are to a resource."""
    return max(0, _count(entry) - _OWN_REFERENCES - (type(entry) is StrongEntry))


def _count(entry: Entry) -> int:
    resource = entry()
    return 0 if resource is None else sys.getrefcount(resource)


class _Probe:
    __slots__ = ("__weakref__",)


def _measure_own_references() -> int:
    # How many of the references that getrefcount sees are its caller's depends on the interpreter: it is measured.
    probe = _Probe()
    held = [probe]
    entry = Entry(probe)
    del probe
    return _count(entry) - len(held)


_OWN_REFERENCES: Final = _measure_own_references()


def _is_library_class(thing: object) -> bool:
    return issubclass(type(thing), type) and is_of_library(namespace_of(thing).get("__module__"))
