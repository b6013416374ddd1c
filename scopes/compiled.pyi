"""The hot paths, compiled: births, deaths, releases, and the straight ways into and out of a scope.

Each does what the function or method of the same name in Python does, which stands in for it where this module was not
built or is not wanted: see `extension`. One copy of the package, in the main interpreter, can be bound to it.
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
    """See `ownership.born`. The scope is that of the context, where the caller knows it already."""

def born_pending(resource: object, kind: Kind, scope: DisposeScope, /) -> Entry:
    """The same, but the listeners are not told yet: of the resource, nothing but its address is looked at."""

def born_whole(
    resource: object, kind: Kind, members: tuple[object, ...] | list[object], member_kind: Kind, /
) -> Entry | None:
    """See `ownership.born_whole`."""

changes: object
"""A capsule with the number of changes of `CURRENT`, in all contexts together."""

def set_current(scope: DisposeScope | None, /) -> None:
    """Change `CURRENT` in this context, and count that: one step for every interrupt."""

def leave(scope: DisposeScope, doing: str, in_flight: BaseException | None, /) -> None:
    """See `scope.leave`."""

def with_undo(both: tuple[Callable[..., Any], Callable[..., object]], /) -> Any:
    """A method that calls the first function, and where that raises the second, with the object and what was raised.

    A method in Python can be interrupted before its first line, where nothing catches it.
    """

def part(resource: object, kind: Kind, unit: Entry, /) -> Entry:
    """See `ownership.part`."""

def died(entry: Entry, /) -> None:
    """See `identity.died`."""

def anchor_died(entry: Entry, /) -> None:
    """See `identity.anchor_died`."""

def sweep() -> None:
    """Forget the composites that have died with all of their members: the quick part of `dead_composites.settle`."""

def forget_ledger(ledger: Ledger, /) -> None:
    """A thread has ended, and its ledger with it."""

def install_compiled(scope_type: type[DisposeScope], /) -> None:
    """Give the class of scopes the compiled methods."""

def release(entry: Entry, with_members: bool = True, /) -> BaseException | None:
    """See `identity.release`."""

def release_newest(entries: dict[Entry, None], failures: list[BaseException], /) -> None:
    """See `scope.release_newest`."""
