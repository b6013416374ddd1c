"""What a composite leaves behind: members that outlive it, and members that several composites share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ._compiled import HOT
from ._entry import LIVE, Entry, StrongEntry
from ._statistics import LOCAL

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["ESTATES", "SHARED", "UNSEEN", "catch_up", "heir_of", "let_go", "settle", "settle_earlier"]


ESTATES: Final[list[Entry]] = []
"""Composites that died by reference count while members of theirs may live on: see `settle`."""

UNSEEN: Final[list[Callable[[DisposeScope | None], object]]] = []
"""Each records the births that it was not told of when they happened; called before anybody counts: see `catch_up`."""

SHARED: Final[dict[Entry, tuple[Entry, ...]]] = {}
"""For a member of several composites, those besides its `unit`: the last one left disposes it. See `heir_of`."""


def heir_of(member: Entry) -> Entry | None:
    """The composite that a shared member belongs to, now that one of its own is gone; None where none is left."""
    if not SHARED:
        return None
    # Whoever gives a member up has left LIVE before, so that of two that do at once at least the later sees nobody
    # left.
    left = [unit for unit in (member.unit, *SHARED.pop(member, ())) if unit is not None and LIVE.get(unit.key) is unit]
    if not left:
        return None
    member.unit = left[0]
    if len(left) > 1:
        SHARED[member] = tuple(left[1:])
    return left[0]


def let_go(entry: Entry) -> None:
    """Leave a resource that lost its owner to its reference count: what is held is forgotten, its members are free."""
    if type(entry) is StrongEntry and LIVE.get(entry.key) is entry and LIVE.pop(entry.key, None) is not None:
        _free_members(entry, None)


def catch_up(scope: DisposeScope | None = None) -> None:
    """Record births that nobody saw, and settle what composites have left behind: before anybody asks or counts.

    Who asks for one scope names it: then nothing is looked for in what the others own.
    """
    for look in UNSEEN:
        look(scope)
    if ESTATES:
        settle()


def settle(closing: DisposeScope | None = None) -> None:
    """Make resources of their own of the members that outlived their composite.

    A composite that dies by reference count usually takes its members along, a moment later. One that somebody else
    still holds (``data = packed.data; del packed``) becomes an independent resource of the same owner, here, before
    anybody counts.
    Where the composite was part of another, the member becomes part of that.

    Parameters
    ----------
    closing : DisposeScope, optional
        A closed scope that is releasing what it owns: it gets the members of its own composites yet.
    """
    if HOT is not None:
        HOT.sweep()
    while True:
        try:
            estate = ESTATES.pop()
        except IndexError:
            return
        _free_members(estate, closing)


def settle_earlier() -> None:
    """As `settle`, but for the composite that has died last: its members may be about to die with it."""
    try:
        last = ESTATES.pop()
    except IndexError:
        return
    try:
        settle()
    finally:
        ESTATES.append(last)


def _free_members(unit: Entry, closing: DisposeScope | None) -> None:
    owner = unit.owner
    unit.owner = None
    survivors: list[Entry] = []
    pending = list(reversed(unit.members))
    unit.members = ()
    while pending:
        member = pending.pop()
        if heir_of(member) is not None:
            continue
        if LIVE.get(member.key) is member and member() is not None:
            survivors.append(member)
        elif member.members:
            # A part that died as well: its members go where it would have gone.
            pending.extend(reversed(member.members))
            member.members = ()
    above = unit.unit
    if above is not None:
        for member in survivors:
            member.unit = above
        above.members += tuple(survivors)
        return
    for member in survivors:
        member.unit = None
        member.owner = owner
        if owner is None:
            let_go(member)
        elif owner is closing:
            owner._entries[member] = None
        else:
            owner._take(member)
        if not member.counted:
            member.counted = True
            if member.owner is None:
                LOCAL.ledger.created_unscoped += 1
            else:
                LOCAL.ledger.created_in_scope += 1
