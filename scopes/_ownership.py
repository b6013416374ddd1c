"""Who owns what, and how that changes: what a scope owns in a tree, hands over, and takes over."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from ._composites import Plan, absorb_members, gathered, plan_members
from ._deaths import track_once
from ._entry import Entry, entry_of, owner_of_entry, standing_of, unit_of
from ._errors import NotOwnedError
from ._estates import ESTATES, UNSEEN, catch_up, let_go
from ._graphs import let_graphs_out
from ._instruments import LISTENERS
from ._kinds import ANCHORED, Kind, kind_of
from ._memory import LET_OUT, MEMORY
from ._parts import arrays_of
from ._releases import check_alive, disposed_error
from ._statistics import LOCAL
from ._trees import resources_in

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["hand_over", "owned_in", "take_over"]


_CLAIMS: Final[dict[Entry, object]] = {}
"""Unowned resources that a thread is giving an owner."""


def owned_in(
    scope: DisposeScope, tree: object, verb: str, plain: list[object], *, check_strict: bool = True
) -> list[Entry]:
    """The entries that a scope owns in a tree, each composite once; `plain` gets its arrays. Changes nothing."""
    if ESTATES or UNSEEN:
        catch_up()
    found: dict[Entry, None] = {}
    resources = resources_in(tree, partial(_hides, scope), f"the tree given to {verb}()", plain)
    if ANCHORED:
        resources = [part for resource in resources for part in gathered(resource, scope)]
    for resource in resources:
        entry = entry_of(resource)
        unit = None if entry is None else unit_of(entry)
        kind = kind_of(resource) if entry is None else entry.kind
        if kind is not None and kind.inner is not None:
            found.update(dict.fromkeys(_owned_inside(scope, resource, kind)))
        if unit is not None and unit.owner is scope and (entry is unit or not (scope.strict and check_strict)):
            found[unit] = None
        elif scope.strict and check_strict:
            _refuse_foreign(scope, resource, entry, unit, verb)
    if scope.strict and check_strict:
        for array in plain:
            _refuse_foreign_array(scope, array, verb)
    return list(found)


def _owned_inside(scope: DisposeScope, resource: object, kind: Kind) -> list[Entry]:
    """What a scope owns of that which a resource is made of, and of what those are made of."""
    found: dict[Entry, None] = {}
    met = {id(resource)}
    pending: list[tuple[object, Kind]] = [(resource, kind)]
    while pending:
        outer, outer_kind = pending.pop()
        for part in () if outer_kind.inner is None else outer_kind.inner(outer):
            part_kind = kind_of(part)
            if part_kind is None or id(part) in met:
                continue
            met.add(id(part))
            pending.append((part, part_kind))
            entry = entry_of(part)
            if entry is not None and owner_of_entry(entry) is scope:
                found[unit_of(entry)] = None
    return list(found)


def _hides(scope: DisposeScope, thing: object) -> bool:
    entry = entry_of(thing)
    return entry is not None and owner_of_entry(entry) is scope


def _refuse_foreign_array(scope: DisposeScope, array: object, verb: str) -> None:
    memory = MEMORY[0]
    owner = memory.owner(array)
    if owner is not scope and memory.is_served(array):
        described, owned = type(array).__qualname__, "nobody" if owner is None else repr(owner)
        raise NotOwnedError(
            f"{verb}: {scope!r} does not own this {described}; its owner is {owned}", resource=described, owner=owned
        )


def _refuse_foreign(scope: DisposeScope, resource: object, entry: Entry | None, unit: Entry | None, verb: str) -> None:
    kind = kind_of(resource)
    described = type(resource).__qualname__ if kind is None else kind.describe(resource)
    owner = "nobody" if unit is None or unit.owner is None else repr(unit.owner)
    if kind is not None and entry is None:
        with suppress(ReferenceError):
            check_alive(resource, kind)
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


def hand_over(scope: DisposeScope, entries: list[Entry], target: DisposeScope | None, plain: list[object]) -> None:
    ledger = LOCAL.ledger
    ledger.graphs_kept += let_graphs_out(entries, scope.graph, f"leaving {scope._called()}")
    if scope._account is not None:
        for array in plain:
            MEMORY[0].move(array, scope, target)
    if LET_OUT:
        for array in plain:
            for let_out in LET_OUT:
                let_out(array)
    for entry in entries:
        # Taking the entry out is the claim: a release or a move on another thread finds nothing then.
        if scope._entries.pop(entry, 0) is not None:
            continue
        entry.owner = target
        if scope._account is not None:
            for array in arrays_of(entry):
                MEMORY[0].move(array, scope, target)
        if target is None:
            ledger.detached += 1
            let_go(entry)
        else:
            ledger.moved += 1
            target._take(entry)
        if LISTENERS:
            for listener in LISTENERS:
                listener.moved(entry, scope, target)


def _claim_unowned(scope: DisposeScope, entry: Entry) -> bool:
    """Become the owner of what has none; False where another thread was faster: it is as if that one came later."""
    claim = object()
    if _CLAIMS.setdefault(entry, claim) is not claim:
        return False
    try:
        if entry.owner is not None:
            return False
        entry.owner = scope
        return True
    finally:
        del _CLAIMS[entry]


def take_over(scope: DisposeScope, resources: list[object]) -> None:
    if ESTATES or UNSEEN:
        catch_up()
    planned: list[tuple[object, Kind, Plan]] = []
    for resource in resources:
        kind = kind_of(resource)
        if kind is None:
            continue
        check_alive(resource, kind)
        if kind.anchor is not None:
            standing = standing_of(resource)
            if standing is not None and standing.owner is not None:
                gathered(resource, standing.owner)
        entry = entry_of(resource)
        if scope.strict and entry is not None and entry.unit is not None:
            _refuse_foreign(scope, resource, entry, unit_of(entry), "attach")
        known = entry is not None and kind.anchor is None
        planned.append((resource, kind, [] if known else plan_members(resource, kind)))
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
    ledger = LOCAL.ledger
    for entry in {unit_of(entry): None for entry in entries}:
        source = entry.owner
        if source is scope:
            continue
        if source is None:
            if not _claim_unowned(scope, entry):
                continue
        elif source._entries.pop(entry, 0) is not None:
            continue
        else:
            entry.owner = scope
        if source is None:
            ledger.attached += 1
        else:
            ledger.moved += 1
        scope._take(entry)
        if MEMORY:
            for array in arrays_of(entry):
                MEMORY[0].move(array, source, scope)
        if LISTENERS:
            for listener in LISTENERS:
                if entry in fresh:
                    listener.born(entry)
                listener.moved(entry, source, scope)
