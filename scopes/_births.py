"""The moment of birth: what a kind calls when one of its instances has come into being."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._compiled import HOT
from ._composites import Plan, absorb_members, plan_members
from ._current import CLOSED, CURRENT, current_scope, resolve
from ._deaths import died, track
from ._entry import LIVE, Entry
from ._instruments import LISTENERS
from ._kinds import Kind
from ._statistics import LOCAL

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["born", "born_composite", "born_in", "born_whole"]


def born_in_python(resource: object, kind: Kind, /) -> Entry:
    """Record the birth of a resource; the current scope owns it from now on.

    Parameters
    ----------
    resource : object
        A new instance, which can be weakly referenced.
    kind : Kind
        Its kind, without members: see `born_composite`.

    Returns
    -------
    Entry
        Its entry in the identity set.
    """
    # This is a hot path: the body of `track` stands here again, to save a call.
    entry = Entry(resource, died)
    entry.key = key = id(resource)
    entry.kind = kind
    entry.unit = None
    entry.members = ()
    entry.counted = True
    entry.home = ledger = LOCAL.ledger
    LIVE[key] = entry
    scope = CURRENT.get()
    if scope is not None and not scope._direct:
        scope = resolve(scope)
    entry.owner = scope
    if scope is None:
        ledger.created_unscoped += 1
    else:
        ledger.created_in_scope += 1
        scope._entries[entry] = None
        if scope._state == CLOSED:
            # Another thread closed it between the two lines above. What its closing did not see goes where the next
            # birth will.
            scope._take(entry)
    if LISTENERS:
        for listener in LISTENERS:
            listener.born(entry)
    return entry


born = born_in_python
if HOT is not None:
    born = HOT.born


def born_composite(resource: object, kind: Kind, plan: Plan | None = None) -> Entry:
    """Record the birth of a composite, whose members become part of it.

    Parameters
    ----------
    resource, kind : object and Kind
        As for `born`.
    plan : list, optional
        Its members, where whoever has made them knows that they go together: then nothing is asked of them.

    Raises
    ------
    DeviceMismatchError, DisposedError, UnknownKindError
        Its members do not make a composite: see `plan_members`. Nothing is recorded then.
    """
    if plan is None:
        plan = plan_members(resource, kind)
    entry = track(resource, kind)
    absorb_members(entry, plan)
    return _recorded(entry, current_scope())


def part_in_python(resource: object, kind: Kind, unit: Entry, /) -> Entry:
    """Make the entry of a member of a composite, which nobody knows yet; it is not counted."""
    entry = track(resource, kind)
    entry.unit = unit
    return entry


part = part_in_python
if HOT is not None:
    part = HOT.part


def born_whole_in_python(
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
    found = [member for member in members if member is not None]
    if any([id(member) in LIVE for member in found]):  # noqa: C419  # a list is faster
        return None
    entry = track(resource, kind)
    entry.members = tuple([part(member, member_kind, entry) for member in found])
    return _recorded(entry, current_scope())


born_whole = born_whole_in_python
if HOT is not None:
    born_whole = HOT.born_whole


def born_in(resource: object, kind: Kind, scope: DisposeScope) -> Entry:
    """Record the birth of a resource that was noticed late; a given scope owns it, or the next one out that is open.

    Parameters
    ----------
    resource : object
        A new instance, which can be weakly referenced.
    kind : Kind
        Its kind, without members.
    scope : DisposeScope
        The scope that was current at its birth.
    """
    return _recorded(track(resource, kind), scope)


def _recorded(entry: Entry, scope: DisposeScope | None) -> Entry:
    """Count a birth, and give what was born to its scope."""
    entry.counted = True
    if scope is None:
        LOCAL.ledger.created_unscoped += 1
    else:
        LOCAL.ledger.created_in_scope += 1
        entry.owner = scope
        scope._take(entry)
    if LISTENERS:
        for listener in LISTENERS:
            listener.born(entry)
    return entry
