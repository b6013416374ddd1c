"""Who owns what, and how that changes: members, births, moves, attaching, and compact copies."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import cast

from .base.errors import DeviceMismatchError, NotOwnedError
from .compiled import ScopeState, born, born_tuple, change_owner, count_open_birth, take_back_birth, thread_ledger
from .context import HOOKS, innermost_scope
from .identity import (
    DEAD,
    DEAD_COMPOSITES,
    LIVE,
    SHARED,
    SHARING,
    AnchoredEntry,
    Entry,
    arrays_of,
    device_of_entry,
    disposed_error,
    entry_of,
    find_births_of,
    finding_births,
    is_owned,
    is_released,
    let_go,
    named_members,
    owner_of_entry,
    owning_entry_of,
    parts_of,
    refuse_disposed,
    settle,
    share,
    track,
    track_once,
    unit_of,
)
from .kinds import KINDS, Cut, Kind, device_name, kind_of
from .tree_walk import resources_in

__all__ = [
    "MemberPlan",
    "absorb_members",
    "belongs_to_model",
    "born",
    "born_late",
    "born_together",
    "compose",
    "compose_of",
    "hand_over",
    "leave_to_keepers",
    "made_compact",
    "owned_in",
    "plan_members",
    "set_apart",
    "take_over",
]

# How a composite takes its members: a plan is made first, with all tests that may refuse it; then
# the plan is carried out.


MemberPlan = list[tuple[object, list[tuple[str, object, Kind]]]]
"""A composite and the composites inside of it, the outermost first, each with its members.

A member is a tuple of its name, the resource and its kind.
"""


def plan_members(resource: object, kind: Kind) -> MemberPlan:
    """Return the members that a new composite would take, for `absorb_members`. Changes nothing.

    Raises
    ------
    DisposedError
        A member has been released.
    DeviceMismatchError
        Two members live on different devices.
    UnknownKindError
        A member is of unknown type and hides a resource.
    """
    plan: MemberPlan = []
    if not kind.is_composite:
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
            refuse_disposed(member, member_kind)
            rows.append((name, member, member_kind))
            if id(member) not in met:
                met.add(id(member))
                if member_kind.is_composite and entry_of(member) is None:
                    pending.append((member, member_kind))
        plan.append((parent, rows))
    _check_devices(plan)
    return plan


def _check_devices(plan: MemberPlan) -> None:
    """Raise `DeviceMismatchError` where the members of a composite are on different devices.

    The device of a composite is that of its members.
    """
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


def absorb_members(unit: Entry, plan: MemberPlan) -> None:
    """Make the planned members part of a composite.

    A member that has an entry loses its owner. A member of another composite is shared by both from
    now on. A member without an entry gets one.
    """
    for parent, rows in plan:
        above = entry_of(parent)
        if above is None:
            continue
        for _, member, kind in rows:
            entry, is_new = track_once(member, kind)
            if entry is None:
                # Another thread has released the member since the plan was made.
                continue
            if not is_new and (entry is unit or _is_part_of(entry, above) or _is_part_of(above, entry)):
                continue
            # It becomes a member before it loses its owner, so that an interrupt loses nothing.
            above.members = (*above.members, entry)
            _absorb(entry, above)


def _absorb(entry: Entry, above: Entry) -> None:
    owner = entry.owner
    if share(entry, above) and owner is not None:
        owner._entries.pop(entry, None)
        entry.owner = None


def set_apart(member: Entry) -> None:
    """Take a member out of its composites. It becomes an independent, unowned resource."""
    with SHARING:
        if member.unit is None:
            return
        for unit in (member.unit, *SHARED.pop(member, ())):
            unit.members = tuple([part for part in unit.members if part is not member])
        member.unit = None
    if not member.counted:
        member.counted = thread_ledger().count_birth(in_scope=False)


def _is_part_of(entry: Entry, unit: Entry) -> bool:
    """Return whether a resource is a member of a composite, directly or through other members."""
    if SHARED and unit in SHARED.get(entry, ()):
        return True
    node: Entry | None = entry.unit
    while node is not None and node is not unit:
        node = node.unit
    return node is not None


def gathered(resource: object, scope: ScopeState | None) -> Iterable[object]:
    """Return the resources that a verb of a scope acts on when it is given a resource.

    They are the resource itself, or the elements of a tuple that is no composite of the scope's.

    The birth of a tuple may not have been recorded. Then it becomes a composite when a verb meets
    it: it gets the owner of its anchor, if that is `scope`, and takes those of its elements as
    members that have the same owner. An element that is a member of another composite is shared by
    both.

    Raises
    ------
    DeviceMismatchError, DisposedError, UnknownKindError
        The tuple cannot be a composite: see `plan_members`. Nothing has changed.
    """
    kind = kind_of(resource)
    if kind is None or not kind.is_anchored or is_released(resource, kind):
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
    own: MemberPlan = []
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
        _record_birth(entry, scope)
    return (resource,)


def _count_in_place_of_members(unit: Entry) -> None:
    """Take back the counts of the members' births: the composite counts in their place."""
    for member in unit.members:
        if member.unit is unit:
            take_back_birth(member)


def compose(resource: object, kind: Kind) -> None:
    """Make a new tuple a composite, if its anchor has an entry: see `gathered`.

    A tuple with an element that is neither None nor a resource is left as it is.
    """
    elements = cast("tuple[object, ...]", resource)
    anchor = None if not kind.is_anchored or not elements else entry_of(kind.anchor(resource))
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
    _record_birth(unit, scope)


def compose_of(resource: object, parts: Iterable[object]) -> None:
    """Make parts members of a resource that was just born, if the same scope owns them.

    A part that is a member of another composite is shared by both.
    """
    unit = entry_of(resource)
    if unit is None or unit.owner is None:
        return
    for part in parts:
        entry = entry_of(part)
        if entry is not None and (entry.owner is unit.owner or entry.unit is not None) and entry not in unit.members:
            unit.members = (*unit.members, entry)
            _absorb(entry, unit)
    _count_in_place_of_members(unit)


def _parts_at_hand(resource: object, kind: Kind, scope: ScopeState | None) -> list[Entry] | None:
    """Return the entries that `gathered` would make members of a new tuple.

    A quick way for common cases; None means that `gathered` has to be called.
    """
    members = None if not kind.is_composite or entry_of(resource) is not None else kind.members(resource)
    if type(members) is not dict:
        return None
    parts: list[Entry] = []
    device: object = None
    for name, member in cast("dict[str, object]", members).items():
        member_kind = kind_of(member)
        if member_kind is None or member_kind.is_composite or id(member) in DEAD:
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


# Births: the functions that a framework calls when a resource has been created.


def born_together(resource: object, kind: Kind, element_kind: Kind | None = None) -> Entry:
    """Record the birth of a composite, whose members become part of it.

    Parameters
    ----------
    resource, kind : object and Kind
        As for `born`.
    element_kind : Kind, optional
        The kind of the elements, if the composite is a tuple that was just made with them. Each
        element is None or can be weakly referenced. They live on one device, and none of them is a
        composite: this is not tested. A small LSTM on a packed sequence takes 6 to 11 % less so.

    Raises
    ------
    DeviceMismatchError, DisposedError, UnknownKindError
        Its members do not make a composite: see `plan_members`. Nothing is recorded then.
    """
    if element_kind is not None and (made := born_tuple(resource, kind, element_kind)) is not None:
        return made
    plan = plan_members(resource, kind)
    entry = track(resource, kind)
    absorb_members(entry, plan)
    _count_in_place_of_members(entry)
    return _record_birth(entry, innermost_scope())


def born_late(resource: object, kind: Kind, scope: ScopeState) -> Entry:
    """Record a birth that was noticed late, when another scope may be current.

    `scope` becomes the owner; if it is closed, the next open scope out.

    Parameters
    ----------
    resource : object
        A new instance, which can be weakly referenced.
    kind : Kind
        Its kind, without members.
    scope : ScopeState
        The scope that was current at its birth.
    """
    return _record_birth(track(resource, kind), scope)


def belongs_to_model(resource: object) -> None:
    """Make a resource unowned and unreported, because a model or an optimizer holds it now.

    The option ``graph`` of its scope is not applied: no verb moved the resource out.

    Parameters
    ----------
    resource : object
        A resource. A disposed one, and any other object, is left as it is.
    """
    entry = entry_of(resource)
    if entry is None:
        return
    set_apart(entry)
    owner = entry.owner
    if owner is not None:
        leave_to_keepers(owner, owned_in(owner, resource, "keep", [], check_strict=False))
    else:
        for listener in HOOKS.listeners:
            listener.died(entry)


def _record_birth(entry: Entry, scope: ScopeState | None) -> Entry:
    """Count a birth, and give what was born to its scope."""
    entry.counted = thread_ledger().count_birth(in_scope=scope is not None)
    if scope is not None:
        entry.owner = scope
        scope._take(entry)
    for listener in HOOKS.listeners:
        listener.born(entry)
    return entry


# Compact copies: a small view gets memory of its own, so that the big storage can be freed.


def made_compact(scope: ScopeState, tree: object, entries: list[Entry], plain: list[object]) -> object:
    """Copy the memory of views in a tree that pin more memory than they use.

    Parameters
    ----------
    scope : ScopeState
        The scope whose resources and plain arrays are copied.
    tree : object
        The tree.
    entries : list of Entry
        The entries that the scope owns in the tree. These resources get their copies in place.
    plain : list of object
        The plain arrays in the tree. A copied array is replaced in the list.

    Returns
    -------
    object
        The tree; if it is a plain array that was copied, the copy.

    Raises
    ------
    TypeError
        A plain array to be copied is inside of a container, where its copy could not take its
        place. Nothing has been copied.
    """
    copies: list[tuple[int, object]] = []
    for index, array in enumerate(plain):
        if HOOKS.memory.owner(array) is not scope:
            continue
        copy = HOOKS.memory.compact_copy(array)
        if copy is array:
            continue
        if array is not tree:
            raise TypeError(
                f"move_to_outer: compact=True copies the {type(array).__qualname__} that it is given, and cannot put "
                f"the copy into the {type(tree).__qualname__} around it: move the array out by itself, or keep a Tensor"
            )
        copies.append((index, copy))
    for entry in entries:
        for part, resource in parts_of(entry):
            part.kind.copy_compact(resource)
    for index, copy in copies:
        plain[index] = tree = copy
        _take_memory_in(scope, copy)
    return tree


def _take_memory_in(scope: ScopeState, array: object) -> None:
    """Make the scope the owner of a new array's memory, which the current scope owns."""
    memory = HOOKS.memory
    owner = memory.owner(array)
    if owner is not None and owner is not scope:
        memory.move(array, owner, scope)


# The verbs: what a scope owns in a tree, what it hands over, and what it takes over.


def owned_in(
    scope: ScopeState,
    tree: object,
    verb: str,
    plain: list[object],
    *,
    what: str | None = None,
    check_strict: bool = True,
    is_result: bool = False,
) -> list[Entry]:
    """Return the entries that a scope owns in a tree, each composite once. Changes no owner.

    Parameters
    ----------
    scope : ScopeState
        The scope.
    tree : object
        A resource, or any nesting of containers.
    verb : str
        The name of the verb, for messages.
    plain : list of object
        Gets the plain arrays in the tree.
    what : str, optional
        What messages call the tree.
    check_strict : bool
        Whether a strict scope raises `NotOwnedError` for what it does not own.
    is_result : bool
        Whether the tree is what a decorated function returned or yielded: see `resources_in`.
    """
    if DEAD_COMPOSITES:
        settle()
    found: dict[Entry, None] = {}
    if kind_of(tree) is not None:
        resources = [tree]
    else:
        hides = finding_births(partial(_hides, scope))
        what = what or f"the tree given to {verb}()"
        resources = resources_in(tree, hides, what, plain, is_owned=is_owned, is_result=is_result)
    if KINDS.finders:
        find_births_of(resources)
    if KINDS.anchored:
        resources = [part for resource in resources for part in gathered(resource, scope)]
    for resource in resources:
        entry = entry_of(resource)
        unit = None if entry is None else unit_of(entry)
        kind = kind_of(resource) if entry is None else entry.kind
        if kind is not None:
            found.update(dict.fromkeys(_owned_inside(scope, resource, kind)))
        if unit is not None and unit.owner is scope and (entry is unit or not (scope.strict and check_strict)):
            found[unit] = None
        elif scope.strict and check_strict:
            _refuse_foreign(scope, resource, entry, unit, verb)
    if scope.strict and check_strict:
        for array in plain:
            _refuse_foreign_array(scope, array, verb)
    return list(found)


def _owned_inside(scope: ScopeState, resource: object, kind: Kind) -> list[Entry]:
    """Return the entries that a scope owns among the parts of a resource, and among their parts.

    Parts are resources that `Kind.inner` returns.
    """
    pending = [(resource, part) for part in kind.inner(resource)]
    if not pending:
        return []
    found: dict[Entry, None] = {}
    met = {id(resource)}
    while pending:
        outer, part = pending.pop()
        part_kind = kind_of(part)
        if part_kind is None or id(part) in met:
            continue
        met.add(id(part))
        pending += [(part, inside) for inside in part_kind.inner(part)]
        entry, above = entry_of(part), entry_of(outer)
        if entry is None or (entry.unit is not None and above is not None and _is_part_of(entry, above)):
            # A member moves with its composite anyway. It takes no other composite along.
            continue
        if owner_of_entry(entry) is scope:
            found[unit_of(entry)] = None
    return list(found)


def _hides(scope: ScopeState, thing: object) -> bool:
    entry = entry_of(thing)
    return entry is not None and owner_of_entry(entry) is scope


def _refuse_foreign_array(scope: ScopeState, array: object, verb: str) -> None:
    memory = HOOKS.memory
    owner = memory.owner(array)
    if owner is not scope and memory.is_served(array):
        described, owned = type(array).__qualname__, "nobody" if owner is None else repr(owner)
        raise NotOwnedError(
            f"{verb}: {scope!r} does not own this {described}; its owner is {owned}", resource=described, owner=owned
        )


def _refuse_foreign(scope: ScopeState, resource: object, entry: Entry | None, unit: Entry | None, verb: str) -> None:
    kind = kind_of(resource)
    described = type(resource).__qualname__ if kind is None else kind.describe(resource)
    owner = "nobody" if unit is None or unit.owner is None else repr(unit.owner)
    if kind is not None and entry is None:
        with suppress(ReferenceError):
            refuse_disposed(resource, kind)
        owner = "nobody, for it was never attached or has been disposed"
    if unit is not None and unit is not entry:
        raise NotOwnedError(
            f"{verb}: {described} is a member of a {unit.kind.name}, which {owner} owns; "
            f"name the {unit.kind.name} itself",
            resource=described,
            owner=owner,
        )
    raise NotOwnedError(
        f"{verb}: {scope!r} does not own {described}; its owner is {owner}", resource=described, owner=owner
    )


def hand_over(scope: ScopeState, entries: list[Entry], target: ScopeState | None, plain: list[object]) -> None:
    """Give entries and plain arrays of a scope to another scope, or to nobody."""
    try:
        _hand_over(scope, entries, target, plain)
    except BaseException:
        _repair_lists_of_owners(entries)
        raise


def _repair_lists_of_owners(entries: list[Entry]) -> None:
    """After an interrupt, put each entry into its owner's `_entries`; let go of unowned ones."""
    for entry in entries:
        if entry.owner is None:
            let_go(entry)
        elif LIVE.get(entry.key) is entry:
            entry.owner._take(entry)


def _let_graphs_out(entries: list[Entry], option: str, leaving: str) -> int:
    """Apply the option `graph` of a scope to the graphs of resources that leave it.

    Parameters
    ----------
    entries : list of Entry
        The entries that leave. The members of a composite are looked at one by one.
    option : str
        A `GraphOption`.
    leaving : str
        For the message: the scope and what was asked of it.

    Returns
    -------
    int
        How many of the entries leave with a graph.

    Raises
    ------
    GraphRetainedError
        The option is ``"error"`` or ``"refuse"`` and there is a graph, or it is ``"detach"`` and a
        graph cannot be removed. Nothing has changed then.
    """
    kept = 0
    cuts: list[Cut] = []
    try:
        for entry in entries:
            carrying = False
            for part in _with_members(entry) if entry.members else (entry,):
                graphs = part.kind.graphs
                resource = None if graphs is None else part()
                if graphs is None or resource is None or not graphs.carried_by(resource):
                    continue
                if option in ("error", "refuse"):
                    raise graphs.refusal(resource, leaving, option)
                if option == "detach":
                    cuts.append(graphs.cut(resource))
                carrying = True
            kept += carrying and option != "detach"
    except BaseException:
        for cut in reversed(cuts):
            cut.undo()
        raise
    for cut in cuts:
        cut.finish()
    return kept


def _with_members(entry: Entry) -> list[Entry]:
    found = [entry]
    for part in found:
        found.extend(part.members)
    return found


def _hand_over(scope: ScopeState, entries: list[Entry], target: ScopeState | None, plain: list[object]) -> None:
    ledger = thread_ledger()
    ledger.graphs_kept += _let_graphs_out(entries, scope.graph, f"leaving {scope._called()}")
    if scope._account is not None:
        for array in plain:
            HOOKS.memory.move(array, scope, target)
    if HOOKS.array_moved_out:
        for array in plain:
            for moved_out in HOOKS.array_moved_out:
                moved_out(array)
    _change_owner(scope, entries, target)


def leave_to_keepers(scope: ScopeState, entries: list[Entry]) -> None:
    """Make resources that keepers hold, and their parts, unowned and unreported: see `keeping`.

    The option `graph` of the scope is not applied.
    """
    found = dict.fromkeys(entries)
    for entry in entries:
        for inside in _owned_inside(scope, entry(), entry.kind):
            found[inside] = None
    entries = list(found)
    try:
        _change_owner(scope, entries, None)
    except BaseException:
        _repair_lists_of_owners(entries)
        raise
    for listener in HOOKS.listeners:
        for entry in entries:
            listener.died(entry)


def _change_owner(scope: ScopeState, entries: list[Entry], target: ScopeState | None) -> None:
    ledger = thread_ledger()
    for entry in entries:
        # Whoever takes the entry out of `_entries` may move it; other threads find nothing then.
        if scope._entries.pop(entry, 0) is not None:
            continue
        count_open_birth(entry)
        if not change_owner(entry, scope, target):
            continue
        if scope._account is not None:
            for array in arrays_of(entry):
                HOOKS.memory.move(array, scope, target)
        if target is None:
            ledger.detached += 1
            let_go(entry)
        else:
            ledger.moved += 1
            target._take(entry)
        for listener in HOOKS.listeners:
            listener.moved(entry, scope, target)


def take_over(scope: ScopeState, resources: list[object]) -> None:
    """Make a scope the owner of resources, whoever owned them before."""
    if DEAD_COMPOSITES:
        settle()
    if KINDS.finders:
        find_births_of(resources)
    planned: list[tuple[object, Kind, MemberPlan]] = []
    for resource in resources:
        kind = kind_of(resource)
        if kind is None:
            continue
        refuse_disposed(resource, kind)
        if kind.is_anchored:
            standing = owning_entry_of(resource)
            if standing is not None and standing.owner is not None:
                gathered(resource, standing.owner)
        entry = entry_of(resource)
        if scope.strict and entry is not None and entry.unit is not None:
            _refuse_foreign(scope, resource, entry, unit_of(entry), "attach")
        known = entry is not None and not kind.is_anchored
        planned.append((resource, kind, [] if known else plan_members(resource, kind)))
    try:
        _attach(scope, planned)
    except BaseException:
        members = [member for _, _, plan in planned for _, rows in plan for _, member, _ in rows]
        met = [*resources, *members]
        entries = [entry for entry in map(entry_of, met) if entry is not None and entry.unit is None]
        for entry in entries:
            # The composite has taken members from their owners, but has no owner itself yet.
            if entry.members and entry.owner is None:
                change_owner(entry, None, scope)
        _repair_lists_of_owners(entries)
        raise


def _attach(scope: ScopeState, planned: list[tuple[object, Kind, MemberPlan]]) -> None:
    fresh: set[Entry] = set()
    entries: list[Entry] = []
    for resource, kind, plan in planned:
        entry, is_new = track_once(resource, kind)
        if entry is None:
            raise disposed_error(resource, kind)
        if is_new:
            fresh.add(entry)
        if plan:
            absorb_members(entry, plan)
        entries.append(entry)
    ledger = thread_ledger()
    for entry in {unit_of(entry): None for entry in entries}:
        source = entry.owner
        if source is scope:
            continue
        if source is not None and source._entries.pop(entry, 0) is not None:
            continue
        count_open_birth(entry)
        if not change_owner(entry, source, scope):
            continue
        if source is None:
            ledger.attached += 1
        else:
            ledger.moved += 1
        scope._take(entry)
        for array in arrays_of(entry):
            HOOKS.memory.move(array, source, scope)
        for listener in HOOKS.listeners:
            if entry in fresh:
                listener.born(entry)
            listener.moved(entry, source, scope)
