"""The identity of resources: one entry for each resource, from its birth to its release.

An entry refers weakly to its resource and knows its owner. The sections of this file, in the order
of a resource's life: the table of entries, what a dead composite leaves behind, how an entry is
made and hears of the death of its resource, what a resource is made of, and how it is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from .errors import DisposedError
from .extension import COMPILED
from .forks import hold_across_forks
from .kinds import ANCHORED, Kind, device_name, kind_of
from .listeners import LISTENERS
from .statistics import LOCAL, Ledger
from .tree_walk import add_leaf_types, resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .scope import DisposeScope

__all__ = [
    "DEAD",
    "DEAD_COMPOSITES",
    "LIVE",
    "SHARED",
    "SHARING",
    "UNSEEN",
    "AnchoredEntry",
    "Entry",
    "StrongEntry",
    "Token",
    "anchor_entry_of",
    "anchor_of",
    "arrays_of",
    "catch_up",
    "check_alive",
    "dead_entry_of",
    "device_of_entry",
    "died",
    "disposed_error",
    "entry_of",
    "find_births_of",
    "find_births_with",
    "finding_births",
    "finish_release",
    "is_interrupt",
    "is_released",
    "is_tracked",
    "let_go",
    "named_members",
    "next_composite_of",
    "owner_of_entry",
    "part_died",
    "parts_of",
    "raise_failures",
    "raise_with_context",
    "references_to",
    "release",
    "settle",
    "settle_earlier",
    "share",
    "standing_of",
    "stands_for",
    "storages_of",
    "story_of",
    "track",
    "track_once",
    "unit_of",
    "united",
]

# The identity set of resources: one entry for each, which refers to it weakly and knows its owner.
#
# Entries live in two tables by the resource's ``id``: `LIVE`, and `DEAD` for what was released and
# is still referenced somewhere. An ``id`` is only ever believed together with the entry's weak
# reference, whose callback empties the slot before the address can come back. An owner change, a
# release and a death each claim the entry with one atomic ``dict.pop``, so that no lock is needed
# and none is held while user code runs. `identity` says why that is enough for a resource to be
# released once.


class Entry(ref[Any]):
    """A weak reference to a resource, with what the library knows of it.

    Compared by identity, unlike other references.

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
    counted : object
        False where its birth is not in the statistics: a member's is not, unless it was born before
        its composite. The `period` of `home` where it was counted there as created in a scope, and
        anything else where it was otherwise.
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
    counted: object

    def __reduce__(self) -> Any:
        raise TypeError("an entry of the identity set belongs to its process and cannot be pickled")


class StrongEntry(Entry):
    """The entry of an object that cannot be weakly referenced: it is held until it is released or detached."""

    # The weak reference underneath is to a token that lives as long as the entry.
    __slots__ = ("_held", "_token")

    _held: Any
    _token: Token

    def __call__(self) -> Any:
        """Return the resource, or None once it has been given up."""
        return self._held


class Token:
    """What the weak reference of a strong entry refers to: it lives as long as the entry."""

    __slots__ = ("__weakref__",)


add_leaf_types(Entry, StrongEntry)

_tuple: Any = tuple

_reference: Any = ref


class AnchoredEntry(Entry):
    """The entry of a tuple, which cannot be weakly referenced: a weak reference to its anchor, and one to each element.

    The tuple that it gives back has the same elements; as long as all of them are alive, the tuple
    counts as alive. Its key is that of the anchor, inverted, because the anchor has an entry of its
    own. Several tuples around one anchor are one resource: `_tuples` has the type and the elements
    of each, the oldest first.
    """

    __slots__ = ("_tuples",)

    _tuples: tuple[tuple[type[tuple[Any, ...]], tuple[ref[Any] | None, ...]], ...]

    def __call__(self) -> Any:
        """Return a tuple of the members, or None once one of them is gone."""
        for cls, references in self._tuples:
            elements = _elements_of(references)
            if elements is not None:
                # Not the type's own __new__, which may take its elements one by one.
                return _tuple.__new__(cls, elements)
        return None

    def remember(self, resource: tuple[Any, ...]) -> None:
        """Take another tuple for the same resource, and forget those that are gone."""
        references = references_to(resource)
        # By identity: references that are not the same one compare what they refer to.
        tuples = [each for each in self._tuples if _elements_of(each[1]) is not None]
        for place, (_, others) in enumerate(tuples):
            if all(map(is_, references, others)):
                tuples[place] = type(resource), others
                break
        else:
            tuples.append((type(resource), references))
        self._tuples = tuple(tuples)

    def anchor(self) -> Any:
        """The anchor, or None where it is gone."""
        return _reference.__call__(self)


def references_to(resource: tuple[Any, ...]) -> tuple[ref[Any] | None, ...]:
    """Weak references to the elements of a tuple; None for those that are None."""
    return tuple([None if element is None else ref(element) for element in resource])


def _elements_of(references: tuple[ref[Any] | None, ...]) -> list[Any] | None:
    """The elements of a tuple; None where one of them is gone, and so the tuple."""
    elements: list[Any] = []
    for reference in references:
        element = None if reference is None else reference()
        if element is None and reference is not None:
            return None
        elements.append(element)
    return elements


LIVE: Final[dict[int, Entry]] = {}
"""Every resource that is alive and not released, members of composites included."""

DEAD: Final[dict[int, Entry]] = {}
"""Every resource that was released and is still referenced."""


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


def stands_for(entry: Entry, resource: object) -> bool:
    """Whether an entry is that of a resource, which the caller holds."""
    if isinstance(entry, AnchoredEntry):
        anchor = anchor_of(resource)
        return anchor is not None and entry.anchor() is anchor
    return entry() is resource


def is_tracked(thing: object) -> bool:
    """Whether an object is a live resource."""
    return entry_of(thing) is not None


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


def unit_of(entry: Entry) -> Entry:
    """The entry that stands for a resource: its own, or that of the outermost composite it is a member of."""
    while entry.unit is not None:
        entry = entry.unit
    return entry


def owner_of_entry(entry: Entry) -> DisposeScope | None:
    """The owner of a resource, or of the composite that it is a member of."""
    return unit_of(entry).owner


# What a composite leaves behind: members that outlive it, and members that several composites
# share.


DEAD_COMPOSITES: Final[list[Entry]] = []
"""Composites that died by reference count while members of theirs may live on: see `settle`."""

UNSEEN: Final[dict[type, Callable[[DisposeScope | None], object]]] = {}
"""For a type whose births cannot all be told when they happen, what records those that were not.

Called before anybody counts (see `catch_up`), and before a verb acts on an instance of the type
(see `find_births_of`). To be read only: see `find_births_with`.
"""


def find_births_with(cls: type, find: Callable[[DisposeScope | None], object]) -> None:
    """Have a function record the births of a type that were not told, whenever somebody is about to ask for them."""
    UNSEEN[cls] = find


SHARED: Final[dict[Entry, tuple[Entry, ...]]] = {}
"""For a member of several composites, those besides its `unit`: the last one left disposes it.

See `next_composite_of`."""


SHARING: Final = threading.RLock()
"""Held while a member gets or loses a composite.

Re-entrant: a collection can end a composite meanwhile.
"""

hold_across_forks(SHARING, 4)


def next_composite_of(member: Entry, gone: Entry | None = None) -> Entry | None:
    """The composite that a shared member belongs to, now that one of its own is gone; None where none is left."""
    with SHARING:
        # Whoever gives a member up has left LIVE before, so that of two that do at once at least
        # the later sees nobody left. Its unit may be another than that which gives it up, also
        # where it is shared no more.
        others = SHARED.pop(member, ()) if SHARED else ()
        left = [unit for unit in (member.unit, *others) if unit not in (None, gone) and LIVE.get(unit.key) is unit]
        if not left:
            return None
        member.unit = left[0]
        if len(left) > 1:
            SHARED[member] = tuple(left[1:])
        return left[0]


def share(member: Entry, above: Entry) -> bool:
    """Make a resource part of a composite; False where it is part of another one already, and shared from now on."""
    with SHARING:
        if member.unit is None:
            member.unit = above
            return True
        others = [unit for unit in SHARED.get(member, ()) if LIVE.get(unit.key) is unit]
        SHARED[member] = (*others, above)
        return False


def let_go(entry: Entry) -> None:
    """Leave a resource that lost its owner to its reference count: what is held is forgotten, its members are free."""
    if type(entry) is StrongEntry and LIVE.get(entry.key) is entry and LIVE.pop(entry.key, None) is not None:
        _free_members(entry, None)


def catch_up(scope: DisposeScope | None = None) -> None:
    """Record births that nobody saw, and settle what composites have left behind: before anybody asks or counts.

    Who asks for one scope names it: then nothing is looked for in what the others own.
    """
    for look in tuple(UNSEEN.values()):
        look(scope)
    if DEAD_COMPOSITES:
        settle()


def find_births_of(resources: Iterable[object], scope: DisposeScope | None = None) -> None:
    """Record births that nobody saw, of the types of these resources: all that a verb on them has to know."""
    found: list[type] = []
    for resource in resources:
        cls = type(resource)
        if cls in UNSEEN and cls not in found:
            found.append(cls)
            UNSEEN[cls](scope)


def finding_births(hides: Callable[[object], bool]) -> Callable[[object], bool]:
    """The same question about what an object refers to, whose unseen birth is recorded before the answer."""
    if not UNSEEN:
        return hides
    found: list[type] = []

    def hides_also_unseen(thing: object) -> bool:
        cls = type(thing)
        if cls in UNSEEN and cls not in found:
            found.append(cls)
            UNSEEN[cls](None)
        return hides(thing)

    return hides_also_unseen


def settle(closing: DisposeScope | None = None) -> None:
    """Make resources of their own of the members that outlived their composite.

    A composite that dies by reference count usually takes its members along, a moment later. One
    that somebody else still holds (``data = packed.data; del packed``) becomes an independent
    resource of the same owner, here, before anybody counts. Where the composite was part of
    another, the member becomes part of that.

    Parameters
    ----------
    closing : DisposeScope, optional
        A closed scope that is releasing what it owns: it gets the members of its own composites
        yet.
    """
    COMPILED.sweep()
    try:
        # A loop takes what it is given before an interrupt can come up; a call and an assignment
        # might lose it.
        for dead_composite in iter(DEAD_COMPOSITES.pop, None):
            try:
                _free_members(dead_composite, closing)
            except BaseException:
                # What is left of it is found next time.
                DEAD_COMPOSITES.append(dead_composite)
                raise
    except IndexError:
        return


def settle_earlier() -> None:
    """As `settle`, but for the composite that has died last: its members may be about to die with it."""
    try:
        last = DEAD_COMPOSITES.pop()
    except IndexError:
        return
    try:
        settle()
    finally:
        DEAD_COMPOSITES.append(last)


def _free_members(unit: Entry, closing: DisposeScope | None) -> None:
    """Give the members that outlived a composite what the composite was: members of one, or resources of an owner.

    Where this is interrupted it can be called again: the composite keeps its members and its owner
    until it is done.
    """
    owner = unit.owner
    survivors: list[Entry] = []
    gone: list[Entry] = []
    pending = list(reversed(unit.members))
    while pending:
        member = pending.pop()
        if next_composite_of(member) is not None:
            continue
        if LIVE.get(member.key) is member and member() is not None:
            survivors.append(member)
        elif member.members:
            # A part that died as well: its members go where it would have gone.
            pending.extend(reversed(member.members))
            gone.append(member)
    above = unit.unit
    if above is not None:
        above.members += tuple(member for member in survivors if member not in above.members)
    for member in survivors:
        member.unit = above
        if above is not None:
            continue
        member.owner = owner
        if owner is None:
            let_go(member)
        elif owner is closing:
            owner._entries[member] = None
        else:
            owner._take(member)
        if not member.counted:
            member.counted = LOCAL.ledger.count_birth(in_scope=member.owner is not None)
    for dead in (*gone, unit):
        dead.members = ()
    unit.owner = None


# How a resource gets its entry, and the callback by which the entry hears that the resource is
# gone.


died: Final[Callable[[Entry], None]] = COMPILED.died
"""Take note that a resource is gone.

The callback of every entry; runs on whichever thread dropped it.
"""


def part_died(member: Entry, live: dict[int, Entry] = LIVE, shared: dict[Entry, tuple[Entry, ...]] = SHARED) -> None:
    """Take note that a tuple is gone: it held its elements, and one of them has died.

    Another tuple around the same anchor may be left, which did not have that element.
    """
    for unit in (member.unit, *shared.pop(member, ())):
        if unit is not None and unit.kind.anchor is not None and live.get(unit.key) is unit and unit() is None:
            died(unit)


anchor_died: Final[Callable[[Entry], None]] = COMPILED.anchor_died
"""Take note that the anchor of a tuple is gone, which may have been seen to die before, with another element."""


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
    # Asked last: whoever releases it puts it there before its entry leaves `LIVE`, and no second
    # one is made before.
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
    entry._tuples = ((type(resource), references_to(resource)),)
    return entry


# What a resource is made of: its members, and the storages, arrays and devices behind all of them.


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


def storages_of(entry: Entry, found: dict[Hashable, int]) -> None:
    """Add the storages behind a live resource and its members to `found`; a storage met twice is counted once."""
    for part, resource in parts_of(entry):
        for identity, nbytes in part.kind.storages(resource):
            found[identity] = nbytes


def arrays_of(entry: Entry) -> list[object]:
    """What `Memory.move` takes for the memory of a live resource and of its members: see `Kind.memory`."""
    return [
        array
        for part, resource in parts_of(entry)
        if part.kind.memory is not None
        for array in part.kind.memory(resource)
    ]


def device_of_entry(entry: Entry) -> str:
    """The normalised device name of a resource; that of a composite is its first member's."""
    resource = entry()
    found: tuple[Entry, Any] | None = (entry, resource)
    while found is not None:
        entry, resource = found
        found = next(((member, one) for member in entry.members if (one := member()) is not None), None)
    return device_name(entry.kind.device(resource))


def named_members(resource: object, kind: Kind) -> Iterator[tuple[str, object]]:
    """The member resources of a composite, each with the name that messages use; containers among them are walked."""
    given: Mapping[str, object] | Iterable[object] = kind.members(resource) if kind.members is not None else ()
    pairs: Iterable[tuple[object, object]] = (
        cast("Mapping[object, object]", given).items() if isinstance(given, Mapping) else enumerate(given)
    )
    for name, member in pairs:
        for index, found in enumerate(resources_in(member, is_tracked, f"member {name} of a {kind.name}")):
            yield str(name) if found is member else f"{name}[{index}]", found


# The release of a resource, and the error that whoever uses it afterwards meets.


release: Final[Callable[..., BaseException | None]] = COMPILED.release
"""Release a resource, its members with it; return what that raised: see ``compiled.pyi``."""


def _leave_alive(entry: Entry, resource: object, owner: DisposeScope | None) -> None:
    """Take back that a resource was released: its release failed, so that it lives, unowned, and can be released again.

    Parameters
    ----------
    entry : Entry
        Its entry, which has left `LIVE`. A member becomes a resource of its own.
    resource : object
        What it stands for.
    owner : DisposeScope or None
        The scope that owned it.
    """
    kind = entry.kind
    if kind.is_disposed is not None and kind.is_disposed(resource):
        return
    ledger = LOCAL.ledger
    if entry.unit is not None:
        # Where the release of its composite has failed as well, it stays a member.
        if LIVE.get(entry.unit.key) is not entry.unit:
            entry.unit = None
            if not entry.counted:
                entry.counted = ledger.count_birth(in_scope=False)
    elif owner is None:
        ledger.disposed_unscoped -= 1
    else:
        ledger.disposed_in_scope -= 1
        ledger.detached += 1
    # Nobody remembers an object without an owner that cannot be weakly referenced.
    if type(entry) is not StrongEntry:
        LIVE[entry.key] = entry
        if DEAD.get(entry.key) is entry:
            del DEAD[entry.key]
    for listener in LISTENERS:
        listener.moved(entry, owner, None)


def finish_release(
    entry: Entry,
    resource: object | None,
    failures: list[BaseException],
    with_members: bool,
    owner: DisposeScope | None,
    lives: bool,
    /,
) -> BaseException | None:
    """Finish a release that raised, and release the members of a composite and theirs, also below one that has died.

    An interrupt may have struck before the release began: it is called once more where the resource
    says that it lives.

    Parameters
    ----------
    entry : Entry
        The entry, which has left `LIVE`.
    resource : object
        What it stands for; None where that is gone.
    failures : list of BaseException
        What was raised so far.
    with_members : bool
        Whether the members of a composite are released too.
    owner : DisposeScope or None
        The scope that owned it.
    lives : bool
        Whether its release raised, so that it is not released.

    Returns
    -------
    BaseException or None
        The one exception that stands for the failures.
    """
    is_disposed = entry.kind.is_disposed
    if is_disposed is not None and any(map(is_interrupt, failures)) and not is_disposed(resource):
        try:
            entry.kind.release(resource)
            lives = False
        except BaseException as error:
            lives = True
            failures.append(error)
    if lives and resource is not None:
        _leave_alive(entry, resource, owner)
    pending = list(reversed(entry.members)) if with_members else []
    while pending:
        member = pending.pop()
        if next_composite_of(member, entry) is not None:
            continue
        pending.extend(reversed(member.members))
        failed = release(member, False)
        if failed is not None:
            failures.append(failed)
            failed = None
        elif member() is None:
            member.members = ()
    if not lives and (resource is None or type(entry) is StrongEntry):
        # They hold each other, and of what is not remembered nobody hears any more.
        entry.members = ()
    try:
        return united(failures, f"releasing a {entry.kind.name}") if len(failures) > 1 else next(iter(failures), None)
    finally:
        # This frame is reached from their tracebacks: full, the list would be in a cycle with them.
        failures.clear()


def is_released(resource: object, kind: Kind) -> bool:
    """Whether a resource has been released."""
    if dead_entry_of(resource) is not None:
        return True
    if kind.is_disposed is not None:
        return kind.is_disposed(resource)
    if kind.members is None or type(resource).__weakrefoffset__ or entry_of(resource) is not None:
        return False
    # It cannot be weakly referenced, so nobody remembers it: its members tell.
    return any(dead_entry_of(member) is not None for _, member in named_members(resource, kind))


def check_alive(resource: object, kind: Kind) -> None:
    """Raise `DisposedError` where a resource has been released."""
    if is_released(resource, kind):
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


def story_of(entry: Entry | None) -> str:
    """What the listeners can tell of a resource for an error message: where it was born and released."""
    if entry is None:
        return ""
    return "".join(story for story in (listener.story(entry) for listener in LISTENERS) if story)


# What is raised where releases failed.
#
# An interrupt is raised as itself, so that ``except KeyboardInterrupt`` and an event loop find it.
# Everything else comes together as a group, or is hung onto the exception that is on its way.


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is raised as what it is, for it stops the program or a part of it: also `RecursionError`."""
    return not isinstance(error, Exception) or isinstance(error, RecursionError)


def raise_failures(failures: list[BaseException], doing: str, in_flight: BaseException | None) -> None:
    """Raise what went wrong in releases as one exception, or hang it onto the one that is on its way already.

    An interrupt propagates instead of the exception on its way, which goes into its context, as
    Python does with what is raised while another exception passes through.
    """
    count = len(failures)
    others = [failure for failure in failures if failure is not in_flight]
    # The frames that hold this list are reached from the failures' tracebacks: full, it would be in
    # a cycle with them.
    failures.clear()
    if in_flight is not None:
        interrupt = next(filter(is_interrupt, others), None)
        if interrupt is None:
            in_flight.add_note(f"while {doing}, {count} releases failed; they are in its __context__")
            _hang_onto(in_flight, others, _message(doing, count))
            return
        _put_before(interrupt, in_flight)
        del interrupt, in_flight
    raised = united(others, doing)
    others.clear()
    try:
        raise_with_context(raised)
    finally:
        # This frame is in its traceback: kept here, it would be a cycle.
        del raised


def raise_with_context(error: BaseException) -> None:
    """Raise an exception with the context that it has: Python puts what is being handled in its place."""
    context = error.__context__
    try:
        raise error
    finally:
        if context is not None:
            error.__context__ = context
        # This frame is in its traceback: kept here, they would be a cycle.
        del error, context


def united(failures: list[BaseException], doing: str) -> BaseException:
    """The one exception that stands for several: an interrupt, with the others in its context, or the group of all."""
    interrupt = next(filter(is_interrupt, failures), None)
    if interrupt is None:
        return BaseExceptionGroup(_message(doing, len(failures)), failures)
    others = [failure for failure in failures if failure is not interrupt]
    if others:
        interrupt.add_note(f"while {doing}, {len(others)} releases failed as well; they are in its __context__")
        _hang_onto(interrupt, others, _message(doing, len(others)))
    return interrupt


def _message(doing: str, count: int) -> str:
    return f"{doing}: {count} of the releases failed; all others were done"


def _put_before(interrupt: BaseException, in_flight: BaseException) -> None:
    """Put an exception into the context of the interrupt that replaces it, where Python has not done so."""
    chain = _chain(interrupt)
    if id(in_flight) not in chain and id(interrupt) not in _chain(in_flight):
        chain.popitem()[1].__context__ = in_flight


def _hang_onto(carrier: BaseException, failures: list[BaseException], message: str) -> None:
    """Put the group of failures into the context of an exception, at the end of the chain that is there."""
    chain = _chain(carrier)
    fresh = [failure for failure in failures if id(failure) not in chain]
    for failure in fresh:
        _cut_context(failure, chain)
    if fresh:
        chain.popitem()[1].__context__ = BaseExceptionGroup(message, fresh)


def _chain(error: BaseException) -> dict[int, BaseException]:
    """By ``id``, an exception, its context, the context of that, and so on."""
    chain: dict[int, BaseException] = {}
    following: BaseException | None = error
    while following is not None and id(following) not in chain:
        chain[id(following)] = following
        following = following.__context__
    return chain


def _cut_context(failure: BaseException, chain: dict[int, BaseException]) -> None:
    """Take the exceptions of a chain out of a failure's context, where Python put them: it will be in theirs."""
    pending = [failure]
    met: set[int] = set()
    while pending:
        error = pending.pop()
        if id(error) in met:
            continue
        met.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            pending.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
        if id(error.__context__) in chain:
            error.__context__ = None
        elif error.__context__ is not None:
            pending.append(error.__context__)
