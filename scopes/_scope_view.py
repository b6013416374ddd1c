"""The ground floor of a scope: what it is made of, and what it tells of itself."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from ._current import CLOSED, OPEN, UNOPENED
from ._entry import LIVE, Entry, owner_of_entry, standing_of
from ._errors import ScopeClosedError, ScopeNestingError
from ._estates import ESTATES, UNSEEN, catch_up, let_go
from ._graphs import GraphOption
from ._memory import MEMORY, ArenaUse
from ._parts import arrays_of, storages_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ._scope import DisposeScope

__all__ = ["ScopeView"]


class ScopeView:
    """The state of a scope, and what may be asked of it."""

    __slots__ = (
        "__weakref__",
        "_account",
        "_arena",
        "_below",
        "_direct",
        "_entries",
        "_frame",
        "_outer",
        "_particular",
        "_passed_over",
        "_served",
        "_state",
        "budget",
        "graph",
        "keep_pages",
        "name",
        "strict",
    )

    name: str | None
    strict: bool
    graph: GraphOption
    keep_pages: bool
    budget: int | None
    # Whether the arena serves the block, and whether anything is unusual about that: it does not, or there is a budget.
    _arena: bool
    _particular: bool
    # What the arena knows of this scope, once it has served it; what it puts back when the block is left.
    _account: object | None
    _served: object | None
    # The scope's owned entries, in the order in which they came; a dict, because it is an ordered set.
    _entries: dict[Entry, None]
    # The scope that this one was opened under, as the user sees it; and what lay in the context variable, which can
    # differ.
    _outer: DisposeScope | None
    _below: DisposeScope | None
    # Open, and nothing about generators to think of: the test on the hot path of every birth.
    _direct: bool
    _state: int
    # The frame of the generator whose block this is, as long as the scope is open.
    _frame: FrameType | None
    _passed_over: tuple[DisposeScope, ...]

    @property
    def closed(self) -> bool:
        """Whether the scope has been closed; False also before it is entered."""
        return self._state == CLOSED

    @property
    def outer(self) -> DisposeScope | None:
        """The scope that was current when this one was opened; once that is closed, the next one out that is open."""
        if not self._state:
            return None
        outer = self._outer
        while outer is not None and outer._state == CLOSED:
            outer = outer._outer
        return outer

    @property
    def live(self) -> tuple[Any, ...]:
        """A snapshot of the resources that this scope owns, oldest first; a composite stands for its members.

        The snapshot holds them: they live at least as long as it does.
        """
        self._check_open("live")
        if ESTATES or UNSEEN:
            catch_up(cast("DisposeScope", self))
        resources = (entry() for entry in list(self._entries))
        return tuple(resource for resource in resources if resource is not None)

    @property
    def nbytes(self) -> int:
        """The bytes of the storages behind what this scope owns, plain arrays included, each storage counted once."""
        self._check_open("nbytes")
        return self._nbytes()

    def _nbytes(self) -> int:
        if ESTATES or UNSEEN:
            catch_up(cast("DisposeScope", self))
        found: dict[Hashable, int] = {}
        for entry in list(self._entries):
            storages_of(entry, found)
        total = sum(found.values())
        if self._account is not None:
            total += MEMORY[0].nbytes(
                cast("DisposeScope", self), [array for entry in list(self._entries) for array in arrays_of(entry)]
            )
        return total

    @property
    def arena(self) -> ArenaUse | None:
        """What the arena serves for this scope; None where NumPy's own allocator serves it."""
        return MEMORY[0].use(cast("DisposeScope", self)) if MEMORY and self._arena else None

    def __len__(self) -> int:
        if ESTATES or UNSEEN:
            catch_up(cast("DisposeScope", self))
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, resource: object) -> bool:
        if ESTATES or UNSEEN:
            catch_up(cast("DisposeScope", self))
        entry = standing_of(resource)
        if entry is None:
            return self._account is not None and MEMORY[0].owner(resource) is self
        return owner_of_entry(entry) is self

    def __repr__(self) -> str:
        state = ("unopened", "open", "closed")[self._state]
        named = "" if self.name is None else f" {self.name!r}"
        owned = "" if self._state != OPEN else f", owns {len(self)}, {self._nbytes()} bytes"
        graph = "" if self.graph == "keep" else f", graph={self.graph!r}"
        return f"<DisposeScope{named} {state}{graph}{owned}>"

    def __reduce__(self) -> Any:
        raise TypeError("a scope belongs to a block of code in its own process and cannot be pickled or copied")

    def _called(self) -> str:
        return "a scope" if self.name is None else f"scope {self.name!r}"

    def _check_open(self, verb: str) -> None:
        if self._state == CLOSED:
            raise ScopeClosedError(f"{verb}: {self._called()} is closed and owns nothing any more", scope=repr(self))
        if self._state == UNOPENED:
            raise ScopeNestingError(
                f"{verb}: {self._called()} has not been entered; open it with a with statement first", scope=repr(self)
            )

    def _take(self, entry: Entry) -> None:
        self._entries[entry] = None
        if self._state == CLOSED and self._entries.pop(entry, 0) is None:
            # Closed by another thread a moment ago: the entry goes where the next birth would.
            entry.owner = outer = self.outer
            if outer is None:
                let_go(entry)
            else:
                outer._take(entry)
        elif LIVE.get(entry.key) is not entry:
            # Released by another thread while it was nobody's.
            self._entries.pop(entry, None)
