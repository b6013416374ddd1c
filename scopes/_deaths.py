"""How a resource gets its entry, and the callback by which the entry hears that the resource is gone."""

from __future__ import annotations

from typing import Any, Final
from weakref import ref

from ._compiled import HOT
from ._entry import DEAD, LIVE, AnchoredEntry, Entry, StrongEntry, Token, dead_entry_of, entry_of, stands_for
from ._estates import ESTATES, SHARED, settle_earlier
from ._instruments import LISTENERS
from ._kinds import ANCHORED, Kind
from ._statistics import LOCAL

__all__ = ["died", "part_died", "track", "track_once"]


_SETTLE_AT: Final = 512


def died_in_python(
    entry: Entry,
    # Bound here, because module globals may be gone when the last tensors die at interpreter exit.
    live: dict[int, Entry] = LIVE,
    dead: dict[int, Entry] = DEAD,
    local: Any = LOCAL,
    listeners: list[Any] = LISTENERS,
    estates: list[Entry] = ESTATES,
    anchored: list[Kind] = ANCHORED,
) -> None:
    """Take note that a resource is gone. The callback of every entry; runs on whichever thread dropped it."""
    key = entry.key
    if live.get(key) is entry:
        try:
            del live[key]
        except KeyError:
            # A release on another thread took it a moment ago, and counts it.
            entry.owner = None
            for listener in listeners:
                listener.died(entry)
            return
        if entry.unit is None:
            owner = entry.owner
            ledger = local.ledger
            if owner is None:
                ledger.disposed_unscoped += 1
            else:
                owner._entries.pop(entry, None)
                ledger.disposed_in_scope += 1
            if entry.members:
                estates.append(entry)
                if len(estates) >= _SETTLE_AT:
                    settle_earlier()
            else:
                entry.owner = None
        else:
            if entry.members:
                estates.append(entry)
            if anchored:
                part_died(entry)
    elif dead.get(key) is entry:
        del dead[key]
    if listeners:
        for listener in listeners:
            listener.died(entry)


died = died_in_python
if HOT is not None:
    died = HOT.died


def part_died(member: Entry, live: dict[int, Entry] = LIVE, shared: dict[Entry, tuple[Entry, ...]] = SHARED) -> None:
    """Take note that a tuple is gone: it held its elements, and one of them has died."""
    for unit in (member.unit, *shared.pop(member, ())):
        if unit is not None and unit.kind.anchor is not None and live.get(unit.key) is unit:
            died(unit)


def anchor_died_in_python(entry: Entry, live: dict[int, Entry] = LIVE, dead: dict[int, Entry] = DEAD) -> None:
    """Take note that the anchor of a tuple is gone, which may have been seen to die before, with another element."""
    if live.get(entry.key) is entry or dead.get(entry.key) is entry:
        died(entry)


anchor_died = anchor_died_in_python
if HOT is not None:
    anchor_died = HOT.anchor_died


def track(resource: object, kind: Kind) -> Entry:
    """Make the entry of a resource that no other thread knows yet, unowned and not yet counted; not of its members."""
    entry = _untracked(resource, kind)
    LIVE[entry.key] = entry
    return entry


def track_once(resource: object, kind: Kind) -> tuple[Entry | None, bool]:
    """Find the entry of a resource that any thread may know, or make it as `track` does.

    Returns
    -------
    entry : Entry or None
        Its entry; None where it has been released.
    is_new : bool
        Whether it was made here.
    """
    entry = entry_of(resource)
    is_new = False
    if entry is None and dead_entry_of(resource) is None:
        made = _untracked(resource, kind)
        entry = LIVE.setdefault(made.key, made)
        if entry is not made and not stands_for(entry, resource):
            # That of something that is gone, and whose callback was interrupted.
            LIVE[made.key] = entry = made
        is_new = entry is made
    # Asked last: whoever releases it puts it there before its entry leaves `LIVE`, and no second one is made before.
    if entry is not None and dead_entry_of(resource) is None:
        return entry, is_new
    if entry is not None and is_new:
        LIVE.pop(entry.key, None)
    return None, False


def _untracked(resource: object, kind: Kind) -> Entry:
    key = id(resource)
    entry: Entry
    if kind.anchor is not None:
        anchor = kind.anchor(resource)
        key = ~id(anchor)
        entry = _anchored_entry(resource, anchor)
    else:
        try:
            entry = Entry(resource, died)
        except TypeError:
            token = Token()
            entry = StrongEntry(token)
            entry._held = resource
            entry._token = token
    entry.key = key
    entry.kind = kind
    entry.owner = None
    entry.home = LOCAL.ledger
    entry.unit = None
    entry.members = ()
    entry.counted = False
    return entry


def _anchored_entry(resource: Any, anchor: object) -> AnchoredEntry:
    entry = AnchoredEntry(anchor, anchor_died)
    entry._elements = tuple([None if element is None else ref(element) for element in resource])
    entry._type = type(resource)
    return entry
