"""Deep autograd graphs that have been looked at: what keeps their release from overflowing the stack.

PyTorch releases a graph in a loop, however deep it is. A node that Python has looked at once keeps its Python object
until it dies, and from then on the release of a chain of such nodes nests: with 2.13 and a stack of 8 MiB it ends in a
segmentation fault at about 50,000 nodes. So whoever walks a deep graph puts guards into it. A guard stands in the
metadata of a node and refers to nodes further down; when its node dies it lets them go from a loop, and the nesting
starts again from nothing. It refers only to what its node refers to anyway, so that nothing lives longer than without
it.
"""

from __future__ import annotations

import threading
from typing import Any, Final, final

__all__ = ["GUARDED_DEPTH", "guard_release"]

GUARDED_DEPTH: Final = 500
"""How many nodes may be released inside one another. A graph of fewer nodes than twice this is left alone."""

_KEY: Final = "disposescope.release"


class _Queue(threading.local):
    pending: list[list[Any]] | None = None


_QUEUE: Final = _Queue()


@final
class _Guard:
    """Keeps Python objects of nodes until it dies, and then drops them one after the other."""

    __slots__ = ("held",)

    held: list[Any]

    def __init__(self, held: list[Any]) -> None:
        self.held = held

    def __del__(self, queue: _Queue = _QUEUE) -> None:
        held, self.held = self.held, []
        if queue.pending is not None:
            # An outer guard is at work further up this very stack: it takes over.
            queue.pending.append(held)
            return
        queue.pending = pending = [held]
        del held
        try:
            while pending:
                # Not bound to a name: it must be gone before the next one is looked at.
                pending.pop().clear()
        finally:
            queue.pending = None


def guard_release(nodes: dict[int, Any], edges: dict[int, list[int]]) -> None:
    """Make sure that the release of a graph nests no deeper than `GUARDED_DEPTH` nodes or twice that.

    Parameters
    ----------
    nodes : dict
        The nodes of the whole graph, by ``id``.
    edges : dict
        For each of them, the ``id`` of the nodes that it refers to.
    """
    if len(nodes) < 2 * GUARDED_DEPTH:
        return
    heights = _heights(nodes, edges)
    for key, below in edges.items():
        storey = heights[key] // GUARDED_DEPTH
        crossed = [nodes[child] for child in below if heights[child] // GUARDED_DEPTH < storey]
        # An edge from one storey to another: heights count from the leaves, so it stays one when the graph grows.
        if crossed:
            metadata = nodes[key].metadata
            if _KEY not in metadata:
                metadata[_KEY] = _Guard(crossed)


def _heights(nodes: dict[int, Any], edges: dict[int, list[int]]) -> dict[int, int]:
    """The length of the longest way from each node to a leaf."""
    above: dict[int, list[int]] = {key: [] for key in nodes}
    waiting: dict[int, int] = {}
    for key, below in edges.items():
        waiting[key] = len(below)
        for child in below:
            above[child].append(key)
    heights = dict.fromkeys(nodes, 0)
    ready = [key for key, count in waiting.items() if count == 0]
    while ready:
        key = ready.pop()
        for parent in above[key]:
            heights[parent] = max(heights[parent], heights[key] + 1)
            waiting[parent] -= 1
            if waiting[parent] == 0:
                ready.append(parent)
    return heights
