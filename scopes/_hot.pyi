"""The hot paths, compiled: births, deaths, releases, and the straight ways into and out of a scope.

Each does what the function or method of the same name in Python does, which stands in for it where this module was not
built or is not wanted: see `_compiled`. One copy of the package, in the main interpreter, can be bound to it.
"""

from typing import Any

from ._entry import Entry
from ._kinds import Kind
from ._scope import DisposeScope
from ._statistics import Ledger

class Counts:
    """The counters of one thread that the compiled paths add to; only that thread does."""

    def values(self) -> tuple[int, int, int, int]:
        """Created in a scope, created outside, disposed in a scope, disposed outside: as the first of a ledger's."""

    def clear(self) -> None:
        """Set them to zero."""

def bind(things: dict[str, Any], /) -> None:
    """Get to know the tables, lists, functions and classes of the Python part, by their names."""

def is_bound() -> bool:
    """Whether `bind` has been called in this process."""

def born(resource: object, kind: Kind, scope: DisposeScope = ..., /) -> Entry:
    """See `_births.born`. The scope is that of the context, where the caller knows it already."""

def born_untold(resource: object, kind: Kind, scope: DisposeScope, /) -> Entry:
    """The same, but the listeners are not told yet: of the resource, nothing but its address is looked at."""

def born_whole(
    resource: object, kind: Kind, members: tuple[object, ...] | list[object], member_kind: Kind, /
) -> Entry | None:
    """See `_births.born_whole`."""

changes: object
"""A capsule with the number of changes of `CURRENT`, in all contexts together."""

def changed() -> None:
    """Count a change of `CURRENT` that was made in Python."""

def part(resource: object, kind: Kind, unit: Entry, /) -> Entry:
    """See `_births.part`."""

def died(entry: Entry, /) -> None:
    """See `_deaths.died`."""

def anchor_died(entry: Entry, /) -> None:
    """See `_deaths.anchor_died`."""

def sweep() -> None:
    """Forget the composites that have died with all of their members: the quick part of `_estates.settle`."""

def forget_ledger(ledger: Ledger, /) -> None:
    """A thread has ended, and its ledger with it."""

def quicken(scope_type: type[DisposeScope], /) -> None:
    """Give the class of scopes the compiled methods."""

def release(entry: Entry, with_members: bool = True, /) -> BaseException | None:
    """See `_releases.release`."""

def release_newest(entries: dict[Entry, None], failures: list[BaseException], /) -> None:
    """See `_closing.release_newest`."""
