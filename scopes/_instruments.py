"""Who is told of births, moves and disposals. Free when nobody listens: the hot paths test one empty list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from ._entry import Entry
    from ._scope import DisposeScope

__all__ = ["ENTERED", "LEFT", "LISTENERS", "Instrument"]


class Instrument(Protocol):
    """What a listener implements. Calls come in the thread of the event, before the verb returns.

    A listener must not raise, must not create or dispose resources, and must not keep a resource alive: an entry is a
    weak reference and may be kept.
    """

    def born(self, entry: Entry) -> None:
        """A resource was created (`entry.owner` tells by whom it is owned), or first met by ``attach``."""

    def moved(self, entry: Entry, source: DisposeScope | None, target: DisposeScope | None) -> None:
        """The owner of a resource changed; None is nobody."""

    def disposed(self, entry: Entry, owner: DisposeScope | None) -> None:
        """A resource was released while it was still referenced by at least its caller."""

    def died(self, entry: Entry) -> None:
        """The last reference of a resource, live or disposed, is gone."""

    def opened(self, scope: DisposeScope) -> None:
        """A scope was entered."""

    def closed(self, scope: DisposeScope) -> None:
        """A scope was closed, after it released what it owned."""

    def story(self, entry: Entry) -> str:
        """Birth and disposal site of a resource for an error message; empty where unknown."""
        ...


LISTENERS: Final[list[Instrument]] = []
"""The listeners, in the order in which they were added."""

ENTERED: Final[list[Callable[[DisposeScope], object]]] = []
"""Called when a scope has been entered, in its thread: for kinds whose births are seen only where one watches."""

LEFT: Final[list[Callable[[DisposeScope], object]]] = []
"""Called once for each scope that was entered, when it is left or closed, before it releases what it owns."""
