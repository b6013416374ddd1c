"""The identity set of resources: one entry for each, which refers to it weakly and knows its owner.

Entries live in two tables by the resource's ``id``: `LIVE`, and `DEAD` for what was released and is still referenced
somewhere. An ``id`` is only ever believed together with the entry's weak reference, whose callback empties the slot
before the address can come back. An owner change, a release and a death each claim the entry with one atomic
``dict.pop``, so that no lock is needed and none is held while user code runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from ._devices import device_name
from ._errors import DeviceMismatchError, DisposedError
from ._instruments import LISTENERS
from ._kinds import ANCHORED, Kind, kind_of
from ._statistics import LOCAL, Ledger
from ._trees import LEAF_TYPES, resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ._scope import DisposeScope

__all__ = [
    "DEAD",
    "LIVE",
    "Entry",
    "Plan",
    "absorb_members",
    "arrays_of",
    "entry_of",
    "gathered",
    "let_go",
    "parts_of",
    "plan_members",
    "release",
    "settle",
    "standing_of",
    "storages_of",
    "track",
]


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
    _token: _Token

    def __call__(self) -> Any:
        return self._held


class _Token:
    __slots__ = ("__weakref__",)


LEAF_TYPES.update((Entry, StrongEntry))


_tuple: Any = tuple
_reference: Any = ref


class AnchoredEntry(Entry):
    """The entry of a tuple, which cannot be weakly referenced: a weak reference to its anchor, and one to each element.

    The tuple that it gives back has the same elements; as long as all of them are alive, the tuple counts as alive.
    Its key is that of the anchor, inverted, because the anchor has an entry of its own.
    """

    __slots__ = ("_elements", "_type")

    _elements: tuple[ref[Any] | None, ...]
    _type: type[tuple[Any, ...]]

    def __call__(self) -> Any:
        elements: list[Any] = []
        for element in self._elements:
            found = None if element is None else element()
            if found is None and element is not None:
                return None
            elements.append(found)
        # Not the type's own __new__, which may take its elements one by one.
        return _tuple.__new__(self._type, elements)

    def anchor(self) -> Any:
        """The anchor, or None where it is gone."""
        return _reference.__call__(self)


LIVE: Final[dict[int, Entry]] = {}
"""Every resource that is alive and not released, members of composites included."""

DEAD: Final[dict[int, Entry]] = {}
"""Every resource that was released and is still referenced."""

ESTATES: Final[list[Entry]] = []
"""Composites that died by reference count while members of theirs may live on: see `settle`."""

SHARED: Final[dict[Entry, tuple[Entry, ...]]] = {}
"""For a member of several composites, those besides its `unit`: the last one left disposes it. See `heir_of`."""

_SETTLE_AT: Final = 512


def died(
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
                    settle()
            else:
                entry.owner = None
        else:
            if entry.members:
                estates.append(entry)
            if anchored:
                _part_died(entry)
    elif dead.get(key) is entry:
        del dead[key]
    if listeners:
        for listener in listeners:
            listener.died(entry)


def _part_died(member: Entry, live: dict[int, Entry] = LIVE, shared: dict[Entry, tuple[Entry, ...]] = SHARED) -> None:
    """Take note that a tuple is gone: it held its elements, and one of them has died."""
    for unit in (member.unit, *shared.pop(member, ())):
        if unit is not None and unit.kind.anchor is not None and live.get(unit.key) is unit:
            died(unit)


def _anchor_died(entry: Entry, live: dict[int, Entry] = LIVE, dead: dict[int, Entry] = DEAD) -> None:
    # The tuple may have been seen to die before, with another element.
    if live.get(entry.key) is entry or dead.get(entry.key) is entry:
        died(entry)


def track(resource: object, kind: Kind) -> Entry:
    """Make the entry of a resource, unowned and not yet counted. Does not look at its members."""
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
    return _anchored_in(LIVE, resource) if ANCHORED else None


def dead_entry_of(resource: object) -> Entry | None:
    """The entry of a resource that was released and is still referenced, or None."""
    entry = DEAD.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    if ANCHORED:
        entry = _anchored_in(DEAD, resource)
        # Its anchor may have had another composite to live on in.
        if entry is not None and DEAD.get(id(entry.anchor())) is not None:
            return entry
    return None


def standing_of(resource: object) -> Entry | None:
    """The entry that tells the owner of a live resource: its own, or its anchor's where it is not known itself."""
    entry = entry_of(resource)
    if entry is None and ANCHORED:
        anchor = anchor_of(resource)
        entry = None if anchor is None else entry_of(anchor)
    return entry


def anchor_of(resource: object) -> object | None:
    """The member whose identity stands for that of a resource, or None where that is its own."""
    kind = kind_of(resource)
    return None if kind is None or kind.anchor is None else kind.anchor(resource)


def anchor_entry_of(entry: Entry) -> Entry:
    """The entry of the member whose identity stands for that of a resource, or its own entry."""
    if not isinstance(entry, AnchoredEntry):
        return entry
    return next((member for member in entry.members if member() is entry.anchor()), entry)


def _anchored_in(table: dict[int, Entry], resource: object) -> AnchoredEntry | None:
    anchor = anchor_of(resource)
    if anchor is not None:
        entry = table.get(~id(anchor))
        if isinstance(entry, AnchoredEntry) and entry.anchor() is anchor:
            return entry
    return None


def _anchored_entry(resource: Any, anchor: object) -> AnchoredEntry:
    entry = AnchoredEntry(anchor, _anchor_died)
    entry._elements = tuple(None if element is None else ref(element) for element in resource)
    entry._type = type(resource)
    return entry


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
    for part, resource in parts_of(entry):
        for identity, nbytes in part.kind.storages(resource):
            found[identity] = nbytes


def arrays_of(entry: Entry) -> list[object]:
    """The plain arrays that hold the elements of a live resource and of its members."""
    return [
        array
        for part, resource in parts_of(entry)
        if part.kind.memory is not None
        for array in part.kind.memory(resource)
    ]


def parts_of(entry: Entry) -> Iterator[tuple[Entry, Any]]:
    """A live resource and its members, and theirs, each with its entry."""
    pending = [entry]
    while pending:
        part = pending.pop()
        if part.members:
            pending.extend(part.members)
        if part is not entry and LIVE.get(part.key) is not part:
            continue
        resource = part()
        if resource is not None:
            yield part, resource


def device_of_entry(entry: Entry) -> str:
    """The normalised device name of a resource; that of a composite is its first member's."""
    part: Entry | None = entry
    while part is not None:
        entry = part
        part = next((member for member in part.members if member() is not None), None)
    return device_name(entry.kind.device(entry()))


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
        for name, member in _named_members(parent, parent_kind):
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
            entry = entry_of(member)
            if entry is None:
                entry = track(member, kind)
            elif entry is unit or _is_part_of(entry, above) or _is_part_of(above, entry):
                continue
            elif entry.unit is not None:
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
    fresh = entry is None
    if entry is None:
        entry = track(resource, kind)
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


def _named_members(resource: object, kind: Kind) -> Iterator[tuple[str, object]]:
    """The member resources of a composite, each with the name that messages use; containers among them are walked."""
    given: Mapping[str, object] | Iterable[object] = kind.members(resource) if kind.members is not None else ()
    pairs: Iterable[tuple[object, object]] = (
        cast("Mapping[object, object]", given).items() if isinstance(given, Mapping) else enumerate(given)
    )
    for name, member in pairs:
        for index, found in enumerate(resources_in(member, is_tracked, f"member {name} of a {kind.name}")):
            yield str(name) if found is member else f"{name}[{index}]", found


def is_tracked(thing: object) -> bool:
    """Whether an object is a live resource."""
    return entry_of(thing) is not None


def check_alive(resource: object, kind: Kind) -> None:
    """Raise `DisposedError` where a resource has been released."""
    if is_released(resource, kind):
        raise disposed_error(resource, kind)


def is_released(resource: object, kind: Kind) -> bool:
    """Whether a resource has been released."""
    if dead_entry_of(resource) is not None:
        return True
    if kind.is_disposed is not None:
        return kind.is_disposed(resource)
    if kind.members is None or type(resource).__weakrefoffset__ or entry_of(resource) is not None:
        return False
    # It cannot be weakly referenced, so nobody remembers it: its members tell.
    return any(dead_entry_of(member) is not None for _, member in _named_members(resource, kind))


def disposed_error(resource: object, kind: Kind) -> DisposedError:
    """The error that says which released resource was used, and where it was made and released if that is known."""
    described = kind.describe(resource)
    story = story_of(dead_entry_of(resource))
    return DisposedError(
        f"{described} has been disposed{story or ' (open a LeakDetector to learn where)'}; "
        "what shall outlive its scope is moved out of it with scope.move_to_outer",
        resource=described,
    )


def release(entry: Entry, with_members: bool = True) -> BaseException | None:
    """Release a resource, its members with it. Idempotent; whoever takes the entry out of `LIVE` does the work.

    Returns
    -------
    BaseException or None
        What the release raised, for the caller to collect; members are released all the same.
    """
    if LIVE.get(entry.key) is not entry:
        return None
    resource = entry()
    if resource is not None and type(entry) is not StrongEntry:
        # Before the claim, so that at no moment it is in neither table: another thread would take it for a new one.
        DEAD[entry.key] = entry
    if LIVE.pop(entry.key, None) is None:
        return None
    owner = entry.owner
    entry.owner = None
    if entry.unit is None:
        if owner is None:
            LOCAL.ledger.disposed_unscoped += 1
        else:
            owner._entries.pop(entry, None)
            LOCAL.ledger.disposed_in_scope += 1
    failure: BaseException | None = None
    if resource is not None:
        if type(entry) is StrongEntry:
            entry._held = None
        if LISTENERS:
            for listener in LISTENERS:
                listener.disposed(entry, owner)
        try:
            entry.kind.release(resource)
        except BaseException as error:
            failure = error
    try:
        if entry.members and with_members:
            return _release_members(entry, failure)
        return failure
    finally:
        # This frame is in its traceback: kept here, it would be a cycle.
        failure = None


def _release_members(unit: Entry, failure: BaseException | None) -> BaseException | None:
    """Release the members of a composite and theirs, also below one that has died, and collect what fails."""
    failures = [] if failure is None else [failure]
    failed: BaseException | None = None
    pending = list(reversed(unit.members))
    while pending:
        member = pending.pop()
        if heir_of(member) is not None:
            continue
        failed = release(member, with_members=False)
        if failed is not None:
            failures.append(failed)
        if member.members:
            pending.extend(reversed(member.members))
    try:
        if len(failures) > 1:
            return BaseExceptionGroup(f"releasing a {unit.kind.name} failed", failures)
        return failures[0] if failures else None
    finally:
        # As above: this frame is reached from their tracebacks.
        failures.clear()
        failure = failed = None


def let_go(entry: Entry) -> None:
    """Leave a resource that lost its owner to its reference count: what is held is forgotten, its members are free."""
    if type(entry) is StrongEntry and LIVE.get(entry.key) is entry and LIVE.pop(entry.key, None) is not None:
        _free_members(entry, None)


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
    while True:
        try:
            estate = ESTATES.pop()
        except IndexError:
            return
        _free_members(estate, closing)


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
