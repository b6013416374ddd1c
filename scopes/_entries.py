"""The identity set of resources: one entry for each, which refers to it weakly and knows its owner.

Entries live in two tables by the resource's ``id``: `LIVE`, and `DEAD` for what was released and is still referenced
somewhere. An ``id`` is only ever believed together with the entry's weak reference, whose callback empties the slot before
the address can come back. An owner change, a release and a death each claim the entry with one atomic ``dict.pop``, so that
no lock is needed and none is held while user code runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from ._devices import device_name
from ._errors import DeviceMismatchError, DisposedError
from ._instruments import LISTENERS
from ._kinds import Kind, kind_of
from ._statistics import LOCAL, Ledger
from ._trees import resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ._scope import DisposeScope

__all__ = ["DEAD", "LIVE", "Entry", "absorb_members", "entry_of", "release", "settle", "storages_of", "track"]


class Entry(ref[Any]):
    """A weak reference to a resource, with what the library knows of it. Compared by identity, unlike other references.

    Attributes
    ----------
    key : int
        The ``id`` of the resource.
    kind : Kind
        Its kind.
    owner : DisposeScope or None
        The one scope that will dispose it. None for a member: its unit has the owner.
    home : Ledger
        The ledger of the thread that it was born on.
    unit : Entry or None
        For a member, the entry of its composite.
    members : tuple of Entry
        For a composite, the entries of its members.
    counted : bool
        Whether its birth is in the statistics; a member's is not, unless it was born before its composite.
    """

    __slots__ = ("counted", "home", "key", "kind", "members", "owner", "unit")
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    key: int
    kind: Kind
    owner: DisposeScope | None
    home: Ledger
    unit: Entry | None
    members: tuple[Entry, ...]
    counted: bool

    def __reduce__(self) -> Any:
        raise TypeError("an entry of the identity set belongs to its process and cannot be pickled")


class StrongEntry(Entry):
    """The entry of an object that cannot be weakly referenced: it is held until it is released or detached."""

    # The weak reference underneath is to a token that lives as long as the entry.
    __slots__ = ("_held", "_token")

    _held: Any

    def __call__(self) -> Any:
        return self._held


class _Token:
    __slots__ = ("__weakref__",)


LIVE: Final[dict[int, Entry]] = {}
"""Every resource that is alive and not released, members of composites included."""

DEAD: Final[dict[int, Entry]] = {}
"""Every resource that was released and is still referenced."""

ESTATES: Final[list[Entry]] = []
"""Composites that died by reference count while members of theirs may live on: see `settle`."""

_SETTLE_AT: Final = 512


def died(
    entry: Entry,
    # Bound here, because module globals may be gone when the last tensors die at interpreter exit.
    live: dict[int, Entry] = LIVE,
    dead: dict[int, Entry] = DEAD,
    local: Any = LOCAL,
    listeners: list[Any] = LISTENERS,
    estates: list[Entry] = ESTATES,
) -> None:
    """Take note that a resource is gone. The callback of every entry; runs on whichever thread dropped it."""
    key = entry.key
    if live.get(key) is entry:
        del live[key]
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
                    settle()
            else:
                entry.owner = None
    elif dead.get(key) is entry:
        del dead[key]
    if listeners:
        for listener in listeners:
            listener.died(entry)


def track(resource: object, kind: Kind) -> Entry:
    """Make the entry of a resource, unowned and not yet counted. Does not look at its members."""
    key = id(resource)
    try:
        entry = Entry(resource, died)
    except TypeError:
        token = _Token()
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
    LIVE[key] = entry
    return entry


def entry_of(resource: object) -> Entry | None:
    """The entry of a live resource, or None; that of a member is its own, not its composite's."""
    entry = LIVE.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    return None


def dead_entry_of(resource: object) -> Entry | None:
    """The entry of a resource that was released and is still referenced, or None."""
    entry = DEAD.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    return None


def unit_of(entry: Entry) -> Entry:
    """The entry that stands for a resource: its own, or that of the outermost composite it is a member of."""
    while entry.unit is not None:
        entry = entry.unit
    return entry


def owner_of_entry(entry: Entry) -> DisposeScope | None:
    """The owner of a resource, or of the composite that it is a member of."""
    return unit_of(entry).owner


def story_of(entry: Entry | None) -> str:
    """What the listeners can tell of a resource for an error message: where it was born and released."""
    if entry is None:
        return ""
    return "".join(story for story in (listener.story(entry) for listener in LISTENERS) if story)


def storages_of(entry: Entry, found: dict[Hashable, int]) -> None:
    """Add the storages behind a live resource and its members to `found`; a storage met twice is counted once."""
    resource = entry()
    if resource is None:
        return
    for identity, nbytes in entry.kind.storages(resource):
        found[identity] = nbytes
    for member in entry.members:
        if LIVE.get(member.key) is member:
            storages_of(member, found)


def device_of_entry(entry: Entry) -> str:
    """The normalised device name of a resource; that of a composite is its first member's unless its kind knows better."""
    for member in entry.members:
        if member() is not None:
            return device_of_entry(member)
    return device_name(entry.kind.device(entry()))


Undo = list[tuple[Entry, "DisposeScope | None", bool]]


def absorb_members(unit: Entry, undo: Undo) -> None:
    """Make resources of the members that a composite names, all or none.

    A member that is tracked gives up its owner; one that is a member of another composite already stays there; one that is
    not tracked yet becomes known as a member only. Does nothing for a kind without members.

    Parameters
    ----------
    unit : Entry
        The entry of the composite.
    undo : list
        Gets a row for each member taken, for `give_back_members`.

    Raises
    ------
    DisposedError
        A member has been released.
    DeviceMismatchError
        Two members live on different devices.
    UnknownKindError
        A member is of unknown type and hides a resource.
    """
    if unit.kind.members is None:
        return
    found: dict[int, tuple[str, object, Kind, Entry | None]] = {}
    for name, member in _named_members(unit):
        kind = kind_of(member)
        if kind is not None:
            check_alive(member, kind)
            found.setdefault(id(member), (name, member, kind, entry_of(member)))
    first: tuple[str, str] | None = None
    for name, member, kind, entry in found.values():
        device = device_name(kind.device(member)) if entry is None else device_of_entry(entry)
        if first is None:
            first = (name, device)
        elif device != first[1]:
            raise DeviceMismatchError(
                f"the members of a {unit.kind.name} must live on one device: {first[0]} is on {first[1]}, "
                f"{name} is on {device}; move them to one device first",
                members=(first[0], name),
                devices=(first[1], device),
            )
    above = {unit}
    parent = unit.unit
    while parent is not None:
        above.add(parent)
        parent = parent.unit
    entries: list[Entry] = []
    for _, member, kind, entry in found.values():
        fresh = entry is None
        if entry is None:
            entry = track(member, kind)
        elif entry.unit is not None or entry in above:
            continue
        owner = entry.owner
        if owner is not None:
            owner._entries.pop(entry, None)
            entry.owner = None
        entry.unit = unit
        entries.append(entry)
        undo.append((entry, owner, fresh))
        if fresh:
            absorb_members(entry, undo)
    unit.members = tuple(entries)


def give_back_members(undo: Undo) -> None:
    """Undo `absorb_members`: every member is what it was before."""
    for entry, owner, fresh in reversed(undo):
        entry.unit = None
        if fresh:
            LIVE.pop(entry.key, None)
            entry.members = ()
        elif owner is not None:
            entry.owner = owner
            owner._entries[entry] = None


def _named_members(unit: Entry) -> Iterator[tuple[str, object]]:
    """The member resources of a composite, each with the name that messages use; containers among them are walked."""
    members = unit.kind.members
    given = members(unit()) if members is not None else ()
    pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
    for name, member in pairs:
        for index, resource in enumerate(resources_in(member, is_tracked, f"member {name} of a {unit.kind.name}")):
            yield str(name) if resource is member else f"{name}[{index}]", resource


def is_tracked(thing: object) -> bool:
    """Whether an object is a live resource."""
    return entry_of(thing) is not None


def check_alive(resource: object, kind: Kind) -> None:
    """Raise `DisposedError` where a resource has been released."""
    entry = dead_entry_of(resource)
    if entry is not None or (kind.is_disposed is not None and kind.is_disposed(resource)):
        raise disposed_error(resource, kind)


def disposed_error(resource: object, kind: Kind) -> DisposedError:
    """The error that says which released resource was used, and where it was made and released if that is known."""
    described = kind.describe(resource)
    story = story_of(dead_entry_of(resource))
    return DisposedError(
        f"{described} has been disposed{story or ' (open a LeakDetector to learn where)'}; "
        "what shall outlive its scope is moved out of it with scope.move_to_outer",
        resource=described,
    )


def release(entry: Entry) -> BaseException | None:
    """Release a resource, its members with it. Idempotent; whoever takes the entry out of `LIVE` does the work.

    Returns
    -------
    BaseException or None
        What the release raised, for the caller to collect; members are released all the same.
    """
    if LIVE.get(entry.key) is not entry or LIVE.pop(entry.key, None) is None:
        return None
    resource = entry()
    owner = entry.owner
    entry.owner = None
    if entry.unit is None:
        if owner is None:
            LOCAL.ledger.disposed_unscoped += 1
        else:
            owner._entries.pop(entry, None)
            LOCAL.ledger.disposed_in_scope += 1
    if resource is None:
        return None
    if type(entry) is StrongEntry:
        entry._held = None
    else:
        DEAD[entry.key] = entry
    failure: BaseException | None = None
    if LISTENERS:
        for listener in LISTENERS:
            listener.disposed(entry, owner)
    try:
        entry.kind.release(resource)
    except BaseException as error:
        failure = error
    for member in entry.members:
        failed = release(member)
        if failed is not None:
            failure = failed if failure is None else BaseExceptionGroup("releasing a composite failed", [failure, failed])
    return failure


def settle() -> None:
    """Make resources of their own of the members that outlived their composite.

    A composite that dies by reference count usually takes its members along, a moment later. One that somebody else still
    holds (``data = packed.data; del packed``) becomes an independent resource of the same owner, here, before anybody counts.
    """
    while True:
        try:
            estate = ESTATES.pop()
        except IndexError:
            return
        owner = estate.owner
        estate.owner = None
        members, estate.members = estate.members, ()
        for member in members:
            resource = member()
            if resource is None or LIVE.get(member.key) is not member:
                continue
            member.unit = None
            scoped = owner is not None and not owner.closed
            if not member.counted:
                member.counted = True
                if scoped:
                    LOCAL.ledger.created_in_scope += 1
                else:
                    LOCAL.ledger.created_unscoped += 1
            if owner is not None and scoped:
                member.owner = owner
                owner._entries[member] = None
