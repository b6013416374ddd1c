"""Plain memory inside a scope: arrays that no resource stands for, and that are never invalidated.

What serves it, the arena, is put here by the floor above. A scope switches the service on and off,
knows what is born in it by bytes and by owner, and hands it on when it is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from .errors import EscapedError
    from .scope import DisposeScope

__all__ = [
    "MEMORY",
    "ArenaUse",
    "Memory",
    "serve_plain_memory",
]


@final
@dataclass(frozen=True, slots=True)
class ArenaUse:
    """What the arena serves for one scope.

    Attributes
    ----------
    blocks, live_nbytes : int
        Blocks that the scope owns now, and the bytes that were asked for in them. 0 once it is
        closed.
    peak_nbytes : int
        The most bytes that it owned at once.
    hits, misses : int
        Blocks born in the scope without asking the system for memory, and with.
    escapes, escaped_nbytes : int
        Blocks that were in use when the scope was closed and not moved out before, and their bytes:
        they belong to the outer scope since.
    budget : int or None
        The bytes that may be in use at once.
    charged_nbytes : int
        The bytes in use that count against the budget, in this scope and in those inside it,
        tensors of other libraries included.
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
    """What the floor above implements.

    None of it may be called while another scope is being changed.
    """

    def entered(self, scope: DisposeScope, /) -> object:
        """Serve the context as the scope wants it; its slot ``_served`` gets what is to be put back."""

    def left(self, scope: DisposeScope, /) -> object:
        """Put back what served the context before."""

    def closed(self, scope: DisposeScope, /) -> EscapedError | None:
        """Hand what the scope has in use to the outer one.

        Returns what a strict scope raises about it.

        Called once the scope has released what it owns. What a live resource shows goes to the
        owner of that one.
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

    def compact_copy(self, thing: object, /) -> object:
        """Return a copy of an array that pins more memory than it uses, and any other array itself."""
        ...


MEMORY: Final[list[Memory]] = []
"""What serves plain memory, behind one `serve_plain_memory`; empty before."""


def serve_plain_memory(service: Memory) -> None:
    """Have a service answer for plain memory from now on, in the place of any other."""
    MEMORY[:] = [service]
