"""What frameworks plug into scopes: the service of plain memory, and listeners to births, moves and disposals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from .errors import EscapedError
    from .identity import Entry
    from .scope import DisposeScope

__all__ = [
    "AFTER_RELEASES",
    "ENTERED",
    "LEFT",
    "LET_OUT",
    "LISTENERS",
    "MEMORY",
    "ArenaUse",
    "Instrument",
    "Memory",
    "finish_releases",
]

# The seam to what serves plain memory inside a scope: the arena, put here by the floor above where
# it is available.
#
# Plain memory is what no resource stands for: arrays that are never invalidated. A scope switches
# its service on and off, knows what is born in it by bytes and by owner, and hands it on when it is
# closed.


@final
@dataclass(frozen=True, slots=True)
class ArenaUse:
    """What the arena serves for one scope.

    Attributes
    ----------
    blocks, live_nbytes : int
        Blocks that the scope owns now, and the bytes that were asked for in them. 0 once it is closed.
    peak_nbytes : int
        The most bytes that it owned at once.
    hits, misses : int
        Blocks born in the scope without asking the system for memory, and with.
    escapes, escaped_nbytes : int
        Blocks that were in use when the scope was closed and not moved out before, and their bytes: they belong to
        the outer scope since.
    budget : int or None
        The bytes that may be in use at once.
    charged_nbytes : int
        The bytes in use that count against the budget, in this scope and in those inside it, tensors of other libraries
        included.
    """

    blocks: int
    live_nbytes: int
    peak_nbytes: int
    hits: int
    misses: int
    escapes: int
    escaped_nbytes: int
    budget: int | None
    charged_nbytes: int


class Memory(Protocol):
    """What the floor above implements. None of it may be called while another scope is being changed."""

    def entered(self, scope: DisposeScope, /) -> object:
        """Serve the context as the scope wants it; its slot ``_served`` gets what is to be put back."""

    def left(self, scope: DisposeScope, /) -> object:
        """Put back what served the context before."""

    def closed(self, scope: DisposeScope, /) -> EscapedError | None:
        """Hand what the scope has in use to the outer one. Returns what a strict scope raises about it.

        Called once the scope has released what it owns. What a live resource shows goes to the owner of that one.
        """
        ...

    def use(self, scope: DisposeScope, /) -> ArenaUse:
        """What is served for the scope."""
        ...

    def nbytes(self, scope: DisposeScope, /) -> int:
        """The bytes in use of the scope, without those that resources show, whoever owns these."""
        ...

    def is_plain(self, thing: object, /) -> bool:
        """Whether an object is plain memory, whoever serves it."""
        ...

    def owner(self, thing: object, /) -> DisposeScope | None:
        """The scope that owns the memory behind an object; None for nobody's, and for memory from elsewhere."""
        ...

    def is_served(self, thing: object, /) -> bool:
        """Whether the memory behind an object is served here."""
        ...

    def move(self, thing: object, source: DisposeScope | None, target: DisposeScope | None, /) -> bool:
        """Change the owner of the memory behind an object, where `source` owns it (None: nobody); tells whether.

        The memory behind a resource stays where anything else refers to it as well.
        """
        ...

    def explain(self, error: MemoryError, /) -> None:
        """Add to an error what is known of the budget that refused the memory."""


LET_OUT: Final[list[Callable[[object], object]]] = []
"""Called with each plain array that is moved out of a scope, whoever has its memory; they do not raise."""

MEMORY: Final[list[Memory]] = []
"""What serves plain memory; empty where nothing does."""

# Who is told of births, moves and disposals. Free when nobody listens: the hot paths test one empty
# list.


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

AFTER_RELEASES: Final[list[Callable[[], object]]] = []
"""What releases have put off until all that belong together are done; called once."""


def finish_releases() -> None:
    """Do what releases have put off."""
    while AFTER_RELEASES:
        # Taken out when it is done: after an interrupt it is done again.
        AFTER_RELEASES[-1]()
        del AFTER_RELEASES[-1:]
