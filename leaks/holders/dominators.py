"""Dominators of a graph of objects, and the bytes that each object retains.

An object dominates another if every way from the roots to the other leads through it. Exactly the
objects that it dominates would be freed if it went away. A reference count would not tell this,
because it is about one object only. Nor would the sum of all that an object reaches, because it
counts shared memory for each holder. So heap analysers (Eclipse MAT, the inspectors of browsers)
sum bytes over the tree of dominators. A storage is a node of its own here, so that it counts once
however many tensors use it.

The functions are pure and work on lists of ints; `retained` makes the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

__all__ = [
    "UNREACHED",
    "Dominators",
    "dominators_of",
]

UNREACHED: Final = -1
"""The dominator of the root, and of a node that the root does not reach."""

_LEAF: Final = -2
"""The number of a leaf that one object holds: the walk passes over it."""

_SEVERAL: Final = -2
"""The holder of a node that several nodes refer to."""


@final
@dataclass(frozen=True, slots=True)
class Dominators:
    """The tree of dominators of a graph.

    Attributes
    ----------
    above : list of int
        The immediate dominator of each node; `UNREACHED` for the root and what it does not reach.
    order : list of int
        The nodes that the root reaches, each after its dominator.
    holders : list of int
        The only node that refers to each node; negative for none or several, and for the root.
    """

    above: list[int]
    order: list[int]
    holders: list[int]

    def totals(self, values: Sequence[int]) -> list[int]:
        """Return for each node the sum of the values of the nodes that it dominates, with its own.

        With bytes as values these are retained bytes. What the root does not reach has 0.

        Parameters
        ----------
        values : sequence of int
            A value for each node.
        """
        above = self.above
        sums = [0] * len(above)
        for node in self.order:
            sums[node] = values[node]
        for node in reversed(self.order):
            parent = above[node]
            if parent != UNREACHED:
                sums[parent] += sums[node]
        return sums


def dominators_of(successors: Sequence[Sequence[int]]) -> Dominators:
    """Return the dominators of a graph whose root is node 0.

    The time is O(m log n) for m edges and n nodes, whatever the shape of the graph: long linked
    lists and graphs of autograd are as fast as trees.

    Parameters
    ----------
    successors : sequence of sequence of int
        For each node, the nodes that it refers to. A node may be in it several times.

    References
    ----------
    T. Lengauer and R. E. Tarjan, "A fast algorithm for finding dominators in a flowgraph", ACM
    Transactions on Programming Languages and Systems 1(1), 1979, pages 121 to 141; the version with
    simple path compression.
    """
    # Most nodes are leaves that only one object refers to. It dominates them: they need no walk.
    holders = _only_holders(successors)
    leaves = [node for node, holder in enumerate(holders) if holder >= 0 and not successors[node]]
    numbers = [UNREACHED] * len(successors)
    for leaf in leaves:
        numbers[leaf] = _LEAF
    vertices, parents = _depth_first(successors, numbers)
    above = _immediate(successors, vertices, numbers, parents)
    found = [UNREACHED] * len(successors)
    for number in range(1, len(vertices)):
        found[vertices[number]] = vertices[above[number]]
    for leaf in leaves:
        if numbers[holders[leaf]] >= 0:
            found[leaf] = holders[leaf]
            vertices.append(leaf)
    return Dominators(found, vertices, holders)


def _only_holders(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return the only node that refers to each node; negative for none or several, and the root."""
    holders = [UNREACHED] * len(successors)
    for node, below in enumerate(successors):
        for child in below:
            holder = holders[child]
            if holder == UNREACHED:
                holders[child] = node
            elif holder != node:
                holders[child] = _SEVERAL
    holders[0] = _SEVERAL
    return holders


def _depth_first(successors: Sequence[Sequence[int]], numbers: list[int]) -> tuple[list[int], list[int]]:
    """Number the nodes in the order of a depth-first walk from the root.

    Return the nodes in that order, and for each the number of its parent. `numbers` gets the number
    of each node; nodes that have one already are left out.
    """
    vertices: list[int] = []
    parents: list[int] = []
    stack = [0]
    stack_parents = [UNREACHED]
    while stack:
        node = stack.pop()
        parent = stack_parents.pop()
        if numbers[node] != UNREACHED:
            continue
        number = numbers[node] = len(vertices)
        vertices.append(node)
        parents.append(parent)
        below = [child for child in successors[node] if numbers[child] == UNREACHED]
        stack += below
        stack_parents += [number] * len(below)
    return vertices, parents


def _immediate(
    successors: Sequence[Sequence[int]], vertices: list[int], numbers: list[int], parents: list[int]
) -> list[int]:
    """Return the immediate dominators of the nodes of a depth-first walk.

    From here on a node is its number in the walk, and the names are those of the paper.
    """
    size = len(vertices)
    # For nodes with other predecessors than their parent, these predecessors.
    predecessors: list[list[int] | None] = [None] * size
    has_several = bytearray(size)
    for number, vertex in enumerate(vertices):
        for child in successors[vertex]:
            other = numbers[child]
            if other <= 0:
                continue
            known = predecessors[other]
            if known is None and number == parents[other]:
                # Most nodes have no other predecessor than their parent: no list is made for it.
                continue
            has_several[other] = 1
            if known is None:
                predecessors[other] = known = []
            known.append(number)
    semi = list(range(size))
    label = list(range(size))
    ancestor = [UNREACHED] * size
    above = list(parents)
    buckets: dict[int, list[int]] = {}

    def evaluate(node: int) -> int:
        if ancestor[node] == UNREACHED:
            return node
        way: list[int] = []
        while ancestor[ancestor[node]] != UNREACHED:
            way.append(node)
            node = ancestor[node]
        best = label[node]
        top = ancestor[node]
        for below in reversed(way):
            if semi[best] < semi[label[below]]:
                label[below] = best
            best = label[below]
            ancestor[below] = top
        return best

    for node in range(size - 1, 0, -1):
        parent = parents[node]
        if has_several[node]:
            least = parent
            for before in predecessors[node] or ():
                least = min(least, semi[evaluate(before)])
            semi[node] = least
            buckets.setdefault(least, []).append(node)
        else:
            # Its only predecessor is its dominator.
            semi[node] = parent
        ancestor[node] = parent
        for waiting in buckets.pop(parent, ()):
            best = evaluate(waiting)
            above[waiting] = best if semi[best] < semi[waiting] else parent
    for node in range(1, size):
        if has_several[node] and above[node] != semi[node]:
            above[node] = above[above[node]]
    return above
