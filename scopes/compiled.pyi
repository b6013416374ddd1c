"""The hot paths, compiled: births, deaths, releases, and the straight ways into and out of a scope.

One copy of the package, in the main interpreter, can be bound to it.
"""

from collections.abc import Callable
from typing import Any

from .identity import Entry
from .kinds import Kind
from .scope import DisposeScope
from .statistics import Ledger

class Counts:
    """The counters of one thread that the compiled paths add to; only that thread does."""

    def values(self) -> tuple[int, int, int, int]:
        """Created in a scope, created outside, disposed in a scope, disposed outside: as the first of a ledger's."""

    def clear(self) -> None:
        """Set them to zero."""

def bind(things: dict[str, Any], /) -> None:
    """Get to know the tables, lists, functions and classes of the Python part, by their names."""

def born(resource: object, kind: Kind, scope: DisposeScope = ..., /) -> Entry:
    """Record the birth of a resource; the current scope owns it from now on.

    Parameters
    ----------
    resource : object
        A new instance, which can be weakly referenced.
    kind : Kind
        Its kind, without members: see `ownership.born_together`.
    scope : DisposeScope, optional
        The scope of this context, where the caller knows it already.

    Returns
    -------
    Entry
        Its entry in the identity set.
    """

def born_pending(resource: object, kind: Kind, scope: DisposeScope, /) -> Entry:
    """The same, but the listeners are not told yet: of the resource, nothing but its address is looked at."""

def born_whole(
    resource: object, kind: Kind, members: tuple[object, ...] | list[object], member_kind: Kind, /
) -> Entry | None:
    """Record the birth of a composite that has just been made with all of its members, whom nobody else knows.

    Parameters
    ----------
    resource, kind : object and Kind
        As for `born`.
    members : tuple or list of object
        Its members, and None in the place of those that it has not. They can be weakly referenced, live on one device,
        and none of them is a composite.
    member_kind : Kind
        Their kind.

    Returns
    -------
    Entry or None
        None where one of the members is known after all: nothing is recorded then.
    """

changes: object
"""A capsule with the number of changes of `CURRENT`, in all contexts together."""

def set_current(scope: DisposeScope | None, /) -> None:
    """Change `CURRENT` in this context, and count that: one step for every interrupt."""

def leave(scope: DisposeScope, doing: str, in_flight: BaseException | None, /) -> None:
    """Leave a scope, or close it before its block is over: off the stack, then `scope.end`, then what failed is raised.

    Parameters
    ----------
    scope : DisposeScope
        The scope.
    doing : {"leaving", "closing"}
        Whether its block is over.
    in_flight : BaseException, optional
        What passes through the block.
    """

def with_undo(both: tuple[Callable[..., Any], Callable[..., object]], /) -> Any:
    """A method that calls the first function, and where that raises the second, with the object and what was raised.

    A method in Python can be interrupted before its first line, where nothing catches it.
    """

def part(resource: object, kind: Kind, unit: Entry, /) -> Entry:
    """Make the entry of a member of a composite, which nobody knows yet; it is not counted."""

def died(entry: Entry, /) -> None:
    """Take note that a resource is gone. The callback of every entry; runs on whichever thread dropped it."""

def anchor_died(entry: Entry, /) -> None:
    """Take note that the anchor of a tuple is gone, which may have been seen to die before, with another element."""

def sweep() -> None:
    """Forget the composites that have died with all of their members: the quick part of `identity.settle`."""

def forget_ledger(ledger: Ledger, /) -> None:
    """A thread has ended, and its ledger with it."""

def install_compiled(scope_type: type[DisposeScope], /) -> None:
    """Give the class of scopes the compiled methods."""

def release(entry: Entry, with_members: bool = True, /) -> BaseException | None:
    """Release a resource, its members with it. Idempotent; whoever takes the entry out of `LIVE` does the work.

    Returns
    -------
    BaseException or None
        What the release raised, for the caller to collect; members are released all the same.
    """

def release_newest(entries: dict[Entry, None], failures: list[BaseException], /) -> None:
    """Release entries, the newest first, until none is left; what releases raise goes to the failures."""
