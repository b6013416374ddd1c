"""Memory that has outlived its scope, and that only a left-over variable still names: no leak at the end of a program.

After ``for batch in scoped_batches(loader): ...`` the variable ``batch`` still names the arrays of the last batch. As
for resources (see `_leftovers`), something is no more than left over where variables, and containers of what was born
between the same two closings, explain every reference to it. Where there is a container, it must be of a scope that was
not the first of its kind: a list that is filled in a scope which is there once is no left-over batch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ._edges import class_of, is_container
from ._frameworks import framework_of
from ._log import LOG, Row
from ._roots import count_names
from ._rows import CLOSINGS, SCOPE
from ._search import Search
from ._subject import UnheldMemory

__all__ = ["left_over_memory"]

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
                closings.setdefault(way[0], set()).add(born[memory][CLOSINGS])
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
    scope = birth[SCOPE]
    return passes.get(scope, 0) > 1 if scope else birth[CLOSINGS] > 0


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
