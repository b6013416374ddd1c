"""Reference cycles: what keeps a resource that nothing else leads to, until the garbage collector runs."""

from __future__ import annotations

import gc
import time
import types
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any, Final, final

from ._edges import HIDDEN_TYPES, IN_GRAPH, action_of, class_of, is_module, is_namespace, referents_of
from ._frameworks import framework_of
from ._paths import called, spelled, steps

__all__ = ["Cycle", "cycle_around", "tensors_with_memory"]

_ANCESTOR_LIMIT: Final = 2_000
_LOOK_AT_CLOCK: Final = 4_096
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
        if count % _LOOK_AT_CLOCK == 0 and (time.monotonic() > deadline or len(found) == len(identities)):
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
