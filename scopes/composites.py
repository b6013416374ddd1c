"""How a composite takes its members: planned first, with every test that may refuse it, and then done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from .errors import DeviceMismatchError
from .identity import (
    DEAD,
    LIVE,
    SHARED,
    SHARING,
    AnchoredEntry,
    Entry,
    check_alive,
    device_of_entry,
    entry_of,
    is_released,
    named_members,
    owner_of_entry,
    share,
    track_once,
    unit_of,
)
from .kinds import Kind, device_name, kind_of
from .listeners import LISTENERS
from .statistics import LOCAL

if TYPE_CHECKING:
    from .scope import DisposeScope

__all__ = [
    "Plan",
    "absorb_members",
    "compose",
    "gathered",
    "plan_members",
    "set_apart",
]

Plan = list[tuple[object, list[tuple[str, object, Kind]]]]
"""The composites that one brings along, itself first, each with its members: name, resource and kind."""


def plan_members(resource: object, kind: Kind) -> Plan:
    """The members that a composite which is not tracked yet would take: for `absorb_members`.

    Changes nothing.

    Raises
    ------
    DisposedError
        A member has been released.
    DeviceMismatchError
        Two members live on different devices.
    UnknownKindError
        A member is of unknown type and hides a resource.
    """
    plan: Plan = []
    if kind.members is None:
        return plan
    met = {id(resource)}
    pending = [(resource, kind)]
    while pending:
        parent, parent_kind = pending.pop()
        rows: list[tuple[str, object, Kind]] = []
        for name, member in named_members(parent, parent_kind):
            member_kind = kind_of(member)
            if member_kind is None:
                continue
            check_alive(member, member_kind)
            rows.append((name, member, member_kind))
            if id(member) not in met:
                met.add(id(member))
                if member_kind.members is not None and entry_of(member) is None:
                    pending.append((member, member_kind))
        plan.append((parent, rows))
    _check_devices(plan)
    return plan


def _check_devices(plan: Plan) -> None:
    """Compare the devices of each composite's members; a composite among them has the device of its own members."""
    devices: dict[int, str | None] = {id(parent): None for parent, _ in plan}
    for parent, rows in reversed(plan):
        first: tuple[str, str] | None = None
        parent_kind = kind_of(parent)
        for name, member, kind in rows:
            if parent_kind is not None and name in parent_kind.host_members:
                continue
            if id(member) in devices:
                device = devices[id(member)]
            else:
                entry = entry_of(member)
                device = device_name(kind.device(member)) if entry is None else device_of_entry(entry)
            if device is None:
                continue
            if first is None:
                first = (name, device)
                devices[id(parent)] = device
            elif device != first[1]:
                called = type(parent).__qualname__
                raise DeviceMismatchError(
                    f"the members of a {called} must live on one device: {first[0]} is on {first[1]}, "
                    f"{name} is on {device}; move them to one device first",
                    members=(first[0], name),
                    devices=(first[1], device),
                )


def absorb_members(unit: Entry, plan: Plan) -> None:
    """Make the members that were planned for a composite part of it.

    A member that is tracked gives up its owner; one that is a member of another composite already
    is shared with it from now on; one that is not tracked yet becomes known as a member only.
    """
    for parent, rows in plan:
        above = entry_of(parent)
        if above is None:
            continue
        for _, member, kind in rows:
            entry, is_new = track_once(member, kind)
            if entry is None:
                # Another thread has released it since it was planned.
                continue
            if not is_new and (entry is unit or _is_part_of(entry, above) or _is_part_of(above, entry)):
                continue
            # A member first, then no longer its owner's: an interrupt in between loses nothing.
            above.members = (*above.members, entry)
            _absorb(entry, above)


def _absorb(entry: Entry, above: Entry) -> None:
    owner = entry.owner
    if share(entry, above) and owner is not None:
        owner._entries.pop(entry, None)
        entry.owner = None


def set_apart(member: Entry) -> None:
    """Make an unowned resource of its own of a member of composites, which are without it from now on."""
    with SHARING:
        if member.unit is None:
            return
        for unit in (member.unit, *SHARED.pop(member, ())):
            unit.members = tuple([part for part in unit.members if part is not member])
        member.unit = None
    if not member.counted:
        member.counted = LOCAL.ledger.count_birth(in_scope=False)


def _is_part_of(entry: Entry, unit: Entry) -> bool:
    """Whether a resource is a member of a composite, or of a member of it."""
    if SHARED and unit in SHARED.get(entry, ()):
        return True
    node: Entry | None = entry.unit
    while node is not None and node is not unit:
        node = node.unit
    return node is not None


def gathered(resource: object, scope: DisposeScope | None) -> Iterable[object]:
    """What a verb of a scope acts on for a resource: itself, or the elements of a tuple that is no composite of its.

    A tuple that nobody has told of is not known until a verb meets it. It becomes a composite of
    the scope that owns its anchor, or of nobody where nobody owns that, and takes along what the
    same scope owns of its elements. An element that is a member of another composite is shared with
    that.

    Raises
    ------
    DeviceMismatchError, DisposedError, UnknownKindError
        It cannot be one: see `plan_members`. Nothing has changed.
    """
    kind = kind_of(resource)
    if kind is None or kind.anchor is None or is_released(resource, kind):
        return (resource,)
    elements = cast("tuple[object, ...]", resource)
    entry = entry_of(resource)
    if entry is not None and unit_of(entry).owner is not scope:
        return (resource,)
    if entry is None:
        anchor = entry_of(kind.anchor(resource))
        if anchor is None or owner_of_entry(anchor) is not scope:
            return tuple(element for element in elements if element is not None)
    plan = plan_members(resource, kind)
    fresh = False
    if entry is None:
        entry, fresh = track_once(resource, kind)
        if entry is None:
            # Another thread has released it meanwhile.
            return (resource,)
    if not fresh and isinstance(entry, AnchoredEntry):
        entry.remember(elements)
        entry.members = tuple([member for member in entry.members if member.members or member() is not None])
    own: Plan = []
    for parent, rows in plan:
        known = [(row, entry_of(row[1])) for row in rows]
        own.append(
            (
                parent,
                [row for row, part in known if part is not None and (part.owner is scope or part.unit is not None)],
            )
        )
    absorb_members(entry, own)
    _count_in_place_of_members(entry)
    if fresh:
        _give(entry, scope)
    return (resource,)


def _count_in_place_of_members(unit: Entry) -> None:
    """Take back what was counted of the births of members, on this thread and since it was set to zero."""
    ledger = LOCAL.ledger
    for member in unit.members:
        if member.unit is unit and member.home is ledger and member.counted is ledger.period:
            member.counted = False
            ledger.created_in_scope -= 1


def _give(unit: Entry, scope: DisposeScope | None) -> None:
    """Count the birth of a tuple, and give it to its scope."""
    unit.counted = LOCAL.ledger.count_birth(in_scope=scope is not None)
    if scope is not None:
        unit.owner = scope
        scope._take(unit)
    if LISTENERS:
        for listener in LISTENERS:
            listener.born(unit)


def compose(resource: object, kind: Kind) -> None:
    """Make one resource of a tuple that has just been made, where its anchor is known: see `gathered`.

    What is of the type and was given anything but resources is left alone.
    """
    elements = cast("tuple[object, ...]", resource)
    anchor = None if kind.anchor is None or not elements else entry_of(kind.anchor(resource))
    if anchor is None or not all([element is None or kind_of(element) is not None for element in elements]):  # noqa: C419  # a list is faster
        return
    scope = owner_of_entry(anchor)
    parts = _parts_at_hand(resource, kind, scope)
    unit, is_new = (None, False) if parts is None else track_once(resource, kind)
    if parts is None or unit is None or not is_new:
        gathered(resource, scope)
        return
    for part in parts:
        _absorb(part, unit)
    unit.members = tuple(parts)
    _count_in_place_of_members(unit)
    _give(unit, scope)


def _parts_at_hand(resource: object, kind: Kind, scope: DisposeScope | None) -> list[Entry] | None:
    """The entries that `gathered` would take of a new tuple; None where that is to find out, and to refuse perhaps."""
    members = None if kind.members is None or entry_of(resource) is not None else kind.members(resource)
    if type(members) is not dict:
        return None
    parts: list[Entry] = []
    device: object = None
    for name, member in cast("dict[str, object]", members).items():
        member_kind = kind_of(member)
        if member_kind is None or member_kind.members is not None or id(member) in DEAD:
            return None
        if name not in kind.host_members:
            found = member_kind.device(member)
            if device is not None and device != found:
                return None
            device = found
        part = LIVE.get(id(member))
        if part is not None and (part.unit is not None or part.owner is scope):
            if part() is not member or part in parts:
                return None
            parts.append(part)
    return parts
