"""Who owns what, and how that changes: births, moves, attaching, and copies that free a big storage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from .composites import Plan, absorb_members, gathered, plan_members
from .context import current_scope
from .errors import NotOwnedError
from .extension import COMPILED
from .identity import (
    DEAD_COMPOSITES,
    LIVE,
    UNSEEN,
    Entry,
    arrays_of,
    check_alive,
    disposed_error,
    entry_of,
    find_births_of,
    finding_births,
    let_go,
    owner_of_entry,
    parts_of,
    settle,
    standing_of,
    track,
    track_once,
    unit_of,
)
from .kinds import ANCHORED, Kind, kind_of
from .listeners import HOOKS, LISTENERS
from .options import let_graphs_out
from .plain_memory import MEMORY
from .statistics import LOCAL
from .tree_walk import resources_in

if TYPE_CHECKING:
    from .scope import DisposeScope

__all__ = [
    "born",
    "born_together",
    "born_late",
    "born_whole",
    "hand_over",
    "made_compact",
    "owned_in",
    "take_over",
]

# The moment of birth: what a kind calls when one of its instances has come into being.


born: Final[Callable[[object, Kind], Entry]] = COMPILED.born
"""Record the birth of a resource, given with its kind; the current scope owns it from now on: see ``compiled.pyi``."""


def born_together(resource: object, kind: Kind, plan: Plan | None = None) -> Entry:
    """Record the birth of a composite, whose members become part of it.

    Parameters
    ----------
    resource, kind : object and Kind
        As for `born`.
    plan : list, optional
        Its members, where whoever has made them knows that they go together: then nothing is asked
        of them.

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


part: Final[Callable[[object, Kind, Entry], Entry]] = COMPILED.part
"""Make the entry of a member of a composite, which nobody knows yet: see ``compiled.pyi``."""

born_whole: Final[Callable[[object, Kind, tuple[object, ...] | list[object], Kind], Entry | None]] = COMPILED.born_whole
"""Record the birth of a composite that has just been made with all of its members: see ``compiled.pyi``."""


def born_late(resource: object, kind: Kind, scope: DisposeScope) -> Entry:
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
    entry.counted = LOCAL.ledger.count_birth(in_scope=scope is not None)
    if scope is not None:
        entry.owner = scope
        scope._take(entry)
    if LISTENERS:
        for listener in LISTENERS:
            listener.born(entry)
    return entry


# Giving small views memory of their own, so that the big one behind them can go.


def made_compact(scope: DisposeScope, tree: object, entries: list[Entry], plain: list[object]) -> object:
    """Give what a scope owns in a tree memory of its own, where it pins more than it uses.

    Returns
    -------
    object
        The tree; where it is a plain array itself, its copy, which stands in `plain` then.

    Raises
    ------
    TypeError
        A plain array to be copied is inside of a container, where its copy could not take its
        place. Nothing has been copied.
    """
    copies: list[tuple[int, object]] = []
    for index, array in enumerate(plain):
        if MEMORY[0].owner(array) is not scope:
            continue
        copy = MEMORY[0].compact_copy(array)
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
            if part.kind.compact is not None:
                part.kind.compact(resource)
    for index, copy in copies:
        plain[index] = tree = copy
        _take_in(scope, copy)
    return tree


def _take_in(scope: DisposeScope, array: object) -> None:
    """Let the scope own memory that was made in whatever scope is current."""
    memory = MEMORY[0]
    owner = memory.owner(array)
    if owner is not None and owner is not scope:
        memory.move(array, owner, scope)


# Who owns what, and how that changes: what a scope owns in a tree, hands over, and takes over.


_CLAIMS: Final[dict[Entry, object]] = {}
"""Unowned resources that a thread is giving an owner."""


def owned_in(
    scope: DisposeScope,
    tree: object,
    verb: str,
    plain: list[object],
    *,
    what: str | None = None,
    check_strict: bool = True,
) -> list[Entry]:
    """The entries that a scope owns in a tree, each composite once; `plain` gets its arrays.

    Changes nothing.
    """
    if DEAD_COMPOSITES:
        settle()
    found: dict[Entry, None] = {}
    hides = finding_births(partial(_hides, scope))
    resources = resources_in(tree, hides, what or f"the tree given to {verb}()", plain)
    if UNSEEN:
        find_births_of(resources)
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
    """Give entries and plain arrays of a scope to another scope, or to nobody."""
    try:
        _hand_over(scope, entries, target, plain)
    except BaseException:
        _put_in_order(entries)
        raise


def _put_in_order(entries: list[Entry]) -> None:
    """After an interrupt: put each entry into the list of its owner, and hold nothing that nobody owns."""
    for entry in entries:
        if entry.owner is None:
            let_go(entry)
        elif LIVE.get(entry.key) is entry:
            entry.owner._take(entry)


def _hand_over(scope: DisposeScope, entries: list[Entry], target: DisposeScope | None, plain: list[object]) -> None:
    ledger = LOCAL.ledger
    ledger.graphs_kept += let_graphs_out(entries, scope.graph, f"leaving {scope._called()}")
    if scope._account is not None:
        for array in plain:
            MEMORY[0].move(array, scope, target)
    if HOOKS.array_moved_out:
        for array in plain:
            for moved_out in HOOKS.array_moved_out:
                moved_out(array)
    for entry in entries:
        # Taking the entry out is the claim: a move on another thread finds nothing then. A release
        # that comes before the new owner is set takes the old one away.
        if scope._entries.pop(entry, 0) is not None or entry.owner is not scope:
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
    try:
        if _CLAIMS.setdefault(entry, claim) is not claim or entry.owner is not None:
            return False
        entry.owner = scope
        if LIVE.get(entry.key) is not entry and entry.owner is scope:
            # Released by another thread before it had this owner, whom that release would have
            # taken from it.
            entry.owner = None
            return False
        return True
    finally:
        if _CLAIMS.get(entry) is claim:
            del _CLAIMS[entry]


def take_over(scope: DisposeScope, resources: list[object]) -> None:
    """Make a scope the owner of resources, whoever owned them before."""
    if DEAD_COMPOSITES:
        settle()
    if UNSEEN:
        find_births_of(resources)
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
    try:
        _attach(scope, planned)
    except BaseException:
        met = [*resources, *(row[1] for _, _, plan in planned for _, rows in plan for row in rows)]
        entries = [entry for entry in map(entry_of, met) if entry is not None and entry.unit is None]
        for entry in entries:
            # A composite has taken its members from their owners.
            if entry.members and entry.owner is None:
                _claim_unowned(scope, entry)
        _put_in_order(entries)
        raise


def _attach(scope: DisposeScope, planned: list[tuple[object, Kind, Plan]]) -> None:
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
        elif source._entries.pop(entry, 0) is not None or entry.owner is not source:
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
