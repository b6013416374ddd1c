"""The seam to what serves plain memory inside a scope: the arena, put here by the floor above where it is available.

Plain memory is what no resource stands for: arrays that are never invalidated. A scope switches its service on and off,
knows what is born in it by bytes and by owner, and hands it on when it is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from ._errors import EscapedError
    from ._scope import DisposeScope

__all__ = ["EXPLAINERS", "LET_OUT", "MEMORY", "ArenaUse", "Memory"]


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
        """Hand what the scope has in use to the outer one. Returns what a strict scope raises about it."""
        ...

    def use(self, scope: DisposeScope, /) -> ArenaUse:
        """What is served for the scope."""
        ...

    def nbytes(self, scope: DisposeScope, arrays: Iterable[object], /) -> int:
        """The bytes in use of the scope, without those that the given arrays of its resources stand for."""
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
        """Change the owner of the memory behind an object, where `source` owns it (None: nobody); tells whether."""
        ...

    def explain(self, error: MemoryError, /) -> None:
        """Add to an error what is known of the budget that refused the memory."""


EXPLAINERS: Final[list[Callable[[BaseException], object]]] = []
"""Called with each exception that leaves a scope, which they may add notes to; they do not raise."""

LET_OUT: Final[list[Callable[[object], object]]] = []
"""Called with each plain array that is moved out of a scope, whoever has its memory; they do not raise."""

MEMORY: Final[list[Memory]] = []
"""What serves plain memory; empty where nothing does."""
