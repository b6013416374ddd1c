"""How a composite takes its members: planned first, with every test that may refuse it, and then done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from ._deaths import track_once
from ._devices import device_name
from ._entry import Entry, entry_of, unit_of
from ._errors import DeviceMismatchError
from ._estates import SHARED
from ._instruments import LISTENERS
from ._kinds import Kind, kind_of
from ._parts import device_of_entry, named_members
from ._releases import check_alive, is_released

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["Plan", "absorb_members", "gathered", "plan_members"]


Plan = list[tuple[object, list[tuple[str, object, Kind]]]]
"""The composites that one brings along, itself first, each with its members: name, resource and kind."""


def plan_members(resource: object, kind: Kind) -> Plan:
    """The members that a composite which is not tracked yet would take: for `absorb_members`. Changes nothing.

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

    A member that is tracked gives up its owner; one that is a member of another composite already is shared with it
    from now on; one that is not tracked yet becomes known as a member only.
    """
    for parent, rows in plan:
        above = entry_of(parent)
        if above is None:
            continue
        taken: list[Entry] = []
        for _, member, kind in rows:
            entry, is_new = track_once(member, kind)
            if entry is None:
                # Another thread has released it since it was planned.
                continue
            if not is_new and (entry is unit or _is_part_of(entry, above) or _is_part_of(above, entry)):
                continue
            if entry.unit is not None:
                SHARED[entry] = (*SHARED.get(entry, ()), above)
                taken.append(entry)
                continue
            owner = entry.owner
            if owner is not None:
                owner._entries.pop(entry, None)
                entry.owner = None
            entry.unit = above
            taken.append(entry)
        above.members += tuple(taken)


def _is_part_of(entry: Entry, unit: Entry) -> bool:
    """Whether a resource is a member of a composite, or of a member of it."""
    if SHARED and unit in SHARED.get(entry, ()):
        return True
    node: Entry | None = entry.unit
    while node is not None and node is not unit:
        node = node.unit
    return node is not None


def gathered(resource: object, scope: DisposeScope) -> Iterable[object]:
    """What a verb of a scope acts on for a resource: itself, or the elements of a tuple that is no composite of its.

    A tuple that was made by somebody else is not known until a verb meets it. It becomes a composite of the scope
    that owns its anchor, and takes along what that scope owns of its elements.

    Raises
    ------
    DeviceMismatchError, DisposedError, UnknownKindError
        It cannot be one: see `plan_members`. Nothing has changed.
    """
    kind = kind_of(resource)
    if kind is None or kind.anchor is None or is_released(resource, kind):
        return (resource,)
    entry = entry_of(resource)
    if entry is not None and unit_of(entry).owner is not scope:
        return (resource,)
    if entry is None:
        anchor = entry_of(kind.anchor(resource))
        if anchor is None or anchor.owner is not scope:
            return tuple(element for element in cast("tuple[object, ...]", resource) if element is not None)
    plan = plan_members(resource, kind)
    fresh = False
    if entry is None:
        entry, fresh = track_once(resource, kind)
        if entry is None:
            # Another thread has released it meanwhile.
            return (resource,)
    if fresh:
        entry.owner = scope
        scope._entries[entry] = None
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
    if fresh and LISTENERS:
        for listener in LISTENERS:
            listener.born(entry)
    return (resource,)
