"""The ways by which a search came to what it found, as code."""

from __future__ import annotations

from typing import Final, final

from .._entry import Entry
from ._edges import IN_GRAPH, action_of, class_of
from ._frameworks import framework_of
from ._paths import spelled
from ._subject import Subject

__all__ = ["WAYS_KEPT", "Link", "Ways"]

WAYS_KEPT: Final = 3

Link = tuple[int, str]
"""An object by its ``id``, and the step from it where the chain of objects does not tell."""


@final
class Ways:
    """What a search has met, as far as it tells how it came there. The search writes it, and clears it.

    Parameters
    ----------
    met : dict
        The objects, by ``id``.
    links : dict
        For each object, the one that led to it, or how a root is written.
    others : dict
        For what was found, further ways to it.
    at : dict
        For memory that was found at a tensor that refers to nothing else, the ``id`` of the tensor.
    """

    __slots__ = ("_at", "_links", "_met", "_others")

    def __init__(
        self,
        met: dict[int, object],
        links: dict[int, int | str],
        others: dict[Subject, list[Link]],
        at: dict[Subject, int],
    ) -> None:
        self._at = at
        self._met = met
        self._links = links
        self._others = others

    def chains_of(self, subject: Subject) -> list[str]:
        """How code reaches something that was found: at most three chains, the shortest first."""
        return [spelled(chain, start) + step for start, chain, step in self.to(subject)]

    def carriers_of(self, subject: Subject) -> list[str]:
        """The tensors whose graphs hold something, as code."""
        carriers: dict[str, None] = {}
        for start, chain, _ in self.to(subject):
            for index in range(len(chain) - 1, 0, -1):
                if action_of(class_of(chain[index])) == IN_GRAPH and action_of(class_of(chain[index - 1])) != IN_GRAPH:
                    carriers[spelled(chain[: index + 1], start)] = None
                    break
        return list(carriers)

    def passes_of(self, subject: Subject) -> int:
        """In how many passes of a loop the graph of a tensor that was found was made; 0 where it has none."""
        for _, chain, step in self.to(subject):
            known = None if step else framework_of(class_of(chain[-1]))
            if known is not None and known[1] == "tensor":
                return known[0].passes(chain[-1])
        return 0

    def to(self, subject: Subject) -> list[tuple[str, list[object], str]]:
        """Ways to what was found: how the first object is written, the objects, and the step from the last."""
        found: list[tuple[str, list[object], str]] = []
        if isinstance(subject, Entry) and subject.key in self._links:
            found.append((*self._chain(subject.key), ""))
        if subject in self._at:
            found.append((*self._chain(self._at[subject]), ""))
        for parent, step in self._others.get(subject, ()):
            start, chain = self._chain(parent)
            if isinstance(subject, Entry) and not step:
                chain.append(self._met[subject.key])
            found.append((start, chain, step))
        return found[:WAYS_KEPT]

    def _chain(self, key: int) -> tuple[str, list[object]]:
        """The objects that lead to one, itself last, and how the first is written."""
        chain = [self._met[key]]
        link = self._links[key]
        while type(link) is int:
            chain.append(self._met[link])
            link = self._links[link]
        chain.reverse()
        return str(link), chain
