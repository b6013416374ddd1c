"""The identity of resources: one entry for each resource, from its birth to its release.

An entry refers weakly to its resource and knows its owner. The sections of this file, in the order
of a resource's life: the table of entries, what a dead composite leaves behind, how an entry is
made and hears of the death of its resource, what a resource is made of, and how it is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from .base.errors import DisposedError
from .base.process import bytes_text, hold_across_forks
from .base.sites import site_of
from .compiled import (
    DEAD,
    DEAD_COMPOSITES,
    LIVE,
    SHARED,
    AnchoredEntry,
    Entry,
    HeldEntry,
    ScopeState,
    StrongEntry,
    make_entry,
    release,
    set_callbacks,
    sweep,
    thread_ledger,
)
from .context import CLOSED, HOOKS
from .kinds import KINDS, Finder, Kind, device_name, finder_of, kind_of
from .tree_walk import resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .compiled import Origin


__all__ = [
    "DEAD",
    "DEAD_COMPOSITES",
    "LIVE",
    "SHARED",
    "SHARING",
    "AnchoredEntry",
    "Entry",
    "HeldEntry",
    "StrongEntry",
    "anchor_entry_of",
    "arrays_of",
    "catch_up",
    "refuse_disposed",
    "dead_entry_of",
    "device_of_entry",
    "disposed_error",
    "entry_of",
    "explain",
    "find_births_of",
    "finding_births",
    "is_owned",
    "is_released",
    "is_tracked",
    "let_go",
    "named_members",
    "owner_of_entry",
    "parts_of",
    "raise_failures",
    "raise_with_context",
    "release",
    "settle",
    "share",
    "standing_of",
    "storages_of",
    "line_of_birth",
    "story_of",
    "name_lines_with",
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
# and none is held while user code runs: a resource is released once.


def entry_of(resource: object) -> Entry | None:
    """Return the entry of a live resource, or None; of a member its own, not its composite's."""
    entry = LIVE.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    return _anchored_in(LIVE, resource) if KINDS.anchored else None


def dead_entry_of(resource: object) -> Entry | None:
    """Return the entry of a resource that was released and is still referenced, or None."""
    entry = DEAD.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    if KINDS.anchored:
        entry = _anchored_in(DEAD, resource)
        # Its anchor may have had another composite to live on in.
        if entry is not None and DEAD.get(id(entry.anchor())) is not None:
            return entry
    return None


def standing_of(resource: object) -> Entry | None:
    """Return the entry that has the owner of a live resource.

    It is its own, or its anchor's where it is not known itself; None where neither is.
    """
    entry = entry_of(resource)
    if entry is None and KINDS.anchored:
        anchor = anchor_of(resource)
        entry = None if anchor is None else entry_of(anchor)
    return entry


def stands_for(entry: Entry, resource: object) -> bool:
    """Return whether an entry is that of a resource, which the caller holds."""
    if isinstance(entry, AnchoredEntry):
        anchor = anchor_of(resource)
        return anchor is not None and entry.anchor() is anchor
    return entry() is resource


def is_tracked(thing: object) -> bool:
    """Return whether an object is a live resource."""
    return entry_of(thing) is not None


def is_owned(thing: object) -> bool:
    """Return whether a scope owns an object: a resource that lives, or an array by its memory."""
    entry = standing_of(thing)
    if entry is None and KINDS.finders:
        find_births_of((thing,))
        entry = entry_of(thing)
    if entry is not None:
        return owner_of_entry(entry) is not None
    return HOOKS.memory.is_plain(thing) and HOOKS.memory.owner(thing) is not None


def anchor_of(resource: object) -> object | None:
    """Return the member whose identity stands for a resource's; None where that is its own."""
    kind = kind_of(resource)
    return kind.anchor(resource) if kind is not None and kind.is_anchored else None


def anchor_entry_of(entry: Entry) -> Entry:
    """Return the entry of the member whose identity stands for a resource's, or its own entry."""
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
    """Return the entry that stands for a resource: its own, or its outermost composite's."""
    while entry.unit is not None:
        entry = entry.unit
    return entry


def owner_of_entry(entry: Entry) -> ScopeState | None:
    """Return the owner of a resource, or of the composite that it is a member of."""
    return unit_of(entry).owner


# What a composite leaves behind: members that outlive it, and members that several composites
# share.


SHARING: Final = threading.RLock()
"""Held while a member gets or loses a composite.

Re-entrant: a collection can end a composite meanwhile.
"""

hold_across_forks(SHARING, 4)


def next_composite_of(member: Entry, gone: Entry | None = None) -> Entry | None:
    """Return the composite that a shared member belongs to after one is gone; None for none."""
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
    """Make a resource part of a composite.

    Return False where it is part of another one already, and shared from now on.
    """
    with SHARING:
        if member.unit is None:
            member.unit = above
            return True
        others = [unit for unit in SHARED.get(member, ()) if LIVE.get(unit.key) is unit]
        SHARED[member] = (*others, above)
        return False


def let_go(entry: Entry) -> None:
    """Leave a resource that lost its owner to its reference count.

    One that cannot be weakly referenced is forgotten, and its members are free.
    """
    if type(entry) is HeldEntry:
        entry.let_go()
    elif type(entry) is StrongEntry and LIVE.get(entry.key) is entry and LIVE.pop(entry.key, None) is not None:
        _free_members(entry, None, [])


def catch_up(scope: ScopeState | None = None) -> None:
    """Record births that nobody saw, and settle what composites have left behind.

    Called before anybody asks or counts. Who asks for one scope names it: then nothing is looked
    for in what the others own.
    """
    # A framework may have several types.
    for finder in dict.fromkeys(KINDS.finders.values()):
        finder(scope)
    if DEAD_COMPOSITES:
        settle()


def find_births_of(resources: Iterable[object], scope: ScopeState | None = None) -> None:
    """Record births that nobody saw, of the types of these resources.

    That is all that a verb on them has to know.
    """
    asked: list[Finder] = []
    for resource in resources:
        finder = finder_of(resource)
        if finder is not None and finder not in asked:
            asked.append(finder)
            finder(scope)


def finding_births(hides: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the same question, which records the unseen birth of an object before it answers."""
    if not KINDS.finders:
        return hides
    asked: list[Finder] = []

    def hides_also_unseen(thing: object) -> bool:
        finder = finder_of(thing)
        if finder is not None and finder not in asked:
            asked.append(finder)
            finder(None)
        return hides(thing)

    return hides_also_unseen


def settle(closing: ScopeState | None = None) -> None:
    """Make resources of their own of the members that outlived their composite.

    A composite that dies by reference count usually takes its members along, a moment later. One
    that somebody else still holds (``data = packed.data; del packed``) becomes an independent
    resource of the same owner, here, before anybody counts. Where the composite was part of
    another, the member becomes part of that.

    What a scope owned that has ended meanwhile, on another thread, is released.

    Parameters
    ----------
    closing : ScopeState, optional
        A closed scope that is releasing what it owns: it gets the members of its own composites
        yet.
    """
    sweep()
    failures: list[BaseException] = []
    try:
        # A loop takes what it is given before an interrupt can come up; a call and an assignment
        # might lose it.
        for dead_composite in iter(DEAD_COMPOSITES.pop, None):
            try:
                _free_members(dead_composite, closing, failures)
            except BaseException:
                # What is left of it is found next time.
                DEAD_COMPOSITES.append(dead_composite)
                raise
    except IndexError:
        pass
    if failures:
        raise_failures(failures, "releasing members of composites whose scope has ended", None)


def settle_earlier() -> None:
    """Settle all but the composite that has died last: its members may be about to die too."""
    try:
        last = DEAD_COMPOSITES.pop()
    except IndexError:
        return
    try:
        settle()
    finally:
        DEAD_COMPOSITES.append(last)


def _free_members(unit: Entry, closing: ScopeState | None, failures: list[BaseException]) -> None:
    """Put the members that outlived a composite in its place.

    They become members of the composite around it, or resources of its owner. Where this is
    interrupted it can be called again: the composite keeps its members and its owner until it is
    done.
    """
    owner = unit.owner
    survivors: list[Entry] = []
    gone: list[Entry] = []
    pending = list(reversed(unit.members))
    while pending:
        member = pending.pop()
        if next_composite_of(member) is not None or member.unit not in (None, unit, *gone):
            # It lives on in another composite, or goes with one that is being released.
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
        if not member.counted:
            member.counted = thread_ledger().count_birth(in_scope=owner is not None)
        member.owner = owner
        if owner is None:
            let_go(member)
            continue
        owner._entries[member] = None
        if LIVE.get(member.key) is not member:
            # Released by another thread while it was nobody's.
            owner._entries.pop(member, None)
        elif owner._state == CLOSED and owner is not closing and owner._entries.pop(member, 0) is None:
            failed = release(member, True, True)
            if failed is not None:
                failures.append(failed)
    for dead in (*gone, unit):
        dead.members = ()
    unit.owner = None


# How a resource gets its entry.


def track(resource: object, kind: Kind) -> Entry:
    """Make the entry of a resource that no other thread knows yet, but not of its members.

    It is in `LIVE`, unowned and not yet counted.
    """
    entry = make_entry(resource, kind)
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
        made = make_entry(resource, kind)
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


# What a resource is made of: its members, and the storages, arrays and devices behind all of them.


def parts_of(entry: Entry) -> Iterator[tuple[Entry, Any]]:
    """Yield a live resource and its members, and theirs, each with its entry."""
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
    """Add the storages behind a live resource and its members to `found`, each storage once."""
    for part, resource in parts_of(entry):
        for identity, nbytes in part.kind.storages(resource):
            found[identity] = nbytes


def arrays_of(entry: Entry) -> list[object]:
    """Return what `Memory.move` takes for a live resource and its members: see `Kind.memory`."""
    return [array for part, resource in parts_of(entry) for array in part.kind.memory(resource)]


def device_of_entry(entry: Entry) -> str:
    """Return the normalised device name of a resource, for a composite its first member's."""
    resource = entry()
    found: tuple[Entry, Any] | None = (entry, resource)
    while found is not None:
        entry, resource = found
        found = next(((member, one) for member in entry.members if (one := member()) is not None), None)
    return device_name(entry.kind.device(resource))


def named_members(resource: object, kind: Kind) -> Iterator[tuple[str, object]]:
    """Yield the member resources of a composite, each after its name for messages.

    Those inside of containers are members too.
    """
    given: Mapping[str, object] | Iterable[object] = kind.members(resource)
    pairs: Iterable[tuple[object, object]] = (
        cast("Mapping[object, object]", given).items() if isinstance(given, Mapping) else enumerate(given)
    )
    for name, member in pairs:
        for index, found in enumerate(
            resources_in(member, is_tracked, f"member {name} of a {kind.name}", is_owned=is_owned)
        ):
            yield str(name) if found is member else f"{name}[{index}]", found


# The release of a resource, and the error that whoever uses it afterwards meets.


def _leave_alive(entry: Entry, resource: object, owner: ScopeState | None) -> None:
    """Take back a release that failed: the resource lives, unowned, and can be released again.

    Parameters
    ----------
    entry : Entry
        Its entry, which has left `LIVE`. A member becomes a resource of its own.
    resource : object
        What it stands for.
    owner : ScopeState or None
        The scope that owned it.
    """
    kind = entry.kind
    if kind.is_disposed(resource):
        return
    ledger = thread_ledger()
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
    for listener in HOOKS.listeners:
        listener.moved(entry, owner, None)


def finish_release(
    entry: Entry,
    resource: object | None,
    failures: list[BaseException],
    with_members: bool,
    owner: ScopeState | None,
    lives: bool,
    /,
) -> BaseException | None:
    """Finish a release that raised, and release the members of a composite.

    Their members are released too, also those of a member that has died. An interrupt may have
    struck before the release began: it is called once more where the resource says that it lives.

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
    owner : ScopeState or None
        The scope that owned it.
    lives : bool
        Whether its release raised, so that it is not released.

    Returns
    -------
    BaseException or None
        The one exception that stands for the failures.
    """
    if any(map(is_interrupt, failures)) and entry.kind.is_disposed(resource) is False:
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


set_callbacks(finish_release=finish_release, settle_earlier=settle_earlier)


def is_released(resource: object, kind: Kind) -> bool:
    """Return whether a resource has been released."""
    if dead_entry_of(resource) is not None:
        return True
    is_disposed = kind.is_disposed(resource)
    if is_disposed is not None:
        return is_disposed
    if not kind.is_composite or type(resource).__weakrefoffset__ or entry_of(resource) is not None:
        return False
    # It cannot be weakly referenced, so that there is no entry of it: its members have theirs.
    return any(dead_entry_of(member) is not None for _, member in named_members(resource, kind))


def refuse_disposed(resource: object, kind: Kind) -> None:
    """Raise `DisposedError` where a resource has been released."""
    if is_released(resource, kind):
        raise disposed_error(resource, kind)


def disposed_error(resource: object, kind: Kind) -> DisposedError:
    """Return the error for the use of a released resource.

    It names the resource, says who released it, and what to write instead.
    """
    described = kind.describe(resource)
    entry = dead_entry_of(resource)
    origin = None if entry is None else _releaser_of(entry)
    story = story_of(entry) or " (open a LeakDetector to learn where it was made)"
    if entry is not None and origin is None:
        return DisposedError(
            f"{described} has been disposed by a call of dispose(), not by a scope{story}. Call dispose() after its "
            "last use, or leave it to a scope",
            resource=described,
        )
    name, code, instruction = origin or (None, None, 0)
    site = "" if code is None else str(site_of((code, instruction)))
    scope = "" if origin is None else " by a scope" if name is None else f" by scope {name!r}"
    return DisposedError(
        f"{described} has been disposed{scope}{site and f', entered at {site}'}{story}. Write ds.move_to_outer(x) in "
        "the scope's block to give x to the next scope out, or ds.keep(x) to take it out of every scope for good",
        resource=described,
        scope=name or "",
        site=site,
    )


def _releaser_of(entry: Entry) -> Origin | None:
    """Return where the scope was entered that released a resource or its composite, or None."""
    node: Entry | None = entry
    while node is not None:
        if node.released_by is not None:
            return node.released_by
        node = node.unit
    return None


def line_of_birth(entry: Entry | None) -> str:
    """Return the line where a resource was born; empty where no listener knows it."""
    lines = ("" if entry is None else listener.line_of_birth(entry) for listener in HOOKS.listeners)
    return next((line for line in lines if line), "")


def story_of(entry: Entry | None) -> str:
    """Return where a resource was born and released, as listeners know it, for an error message."""
    if entry is None:
        return ""
    return "".join(story for story in (listener.story(entry) for listener in HOOKS.listeners) if story)


# What is raised where releases failed.
#
# An interrupt is raised as itself, so that ``except KeyboardInterrupt`` and an event loop find it.
# Everything else comes together as a group, or is hung onto the exception that is on its way.


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception stops the program or a part of it, and is raised as itself.

    `RecursionError` is one, too.
    """
    return not isinstance(error, Exception) or isinstance(error, RecursionError)


def raise_failures(failures: list[BaseException], doing: str, in_flight: BaseException | None) -> None:
    """Raise what went wrong in releases as one exception, or hang it onto the one on its way.

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
    """Raise an exception with the context that it has.

    Python would put what is being handled in the place of that.
    """
    context = error.__context__
    try:
        raise error
    finally:
        if context is not None:
            error.__context__ = context
        # This frame is in its traceback: kept here, they would be a cycle.
        del error, context


def united(failures: list[BaseException], doing: str) -> BaseException:
    """Return one exception for several: an interrupt with the others as context, or their group."""
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
    """Put an exception into the context of the interrupt that replaces it, if Python has not."""
    chain = _chain(interrupt)
    if id(in_flight) not in chain and id(interrupt) not in _chain(in_flight):
        chain.popitem()[1].__context__ = in_flight


def _hang_onto(carrier: BaseException, failures: list[BaseException], message: str) -> None:
    """Put the group of failures at the end of the chain of an exception's contexts."""
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
    """Take the exceptions of a chain out of a failure's context, where Python put them.

    The failure will be in theirs.
    """
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


# Notes of what is live now, for an error for want of memory that leaves a scope.

_SHOWN: Final = 5
_TITLE: Final = "most of the live memory of tensors:"
_BUDGET: Final = "the budget of "
# PyTorch's allocator for the CPU raises a plain RuntimeError.
_FAILED: Final = "can't allocate memory"

_by_line: Callable[[], list[tuple[int, str]]] | None = None


def name_lines_with(function: Callable[[], list[tuple[int, str]]]) -> None:
    """Have a function give the live bytes of each line, with a text that names it, most first."""
    global _by_line
    _by_line = function


def explain(error: BaseException) -> None:
    """Add what is live to an exception for want of memory that leaves a scope.

    Nothing is added where an inner scope has done so; where a budget refused the memory, notes on
    that are added in its place.
    """
    if isinstance(error, MemoryError):
        HOOKS.memory.explain(error)
    if not _is_for_want_of_memory(error):
        return
    notes: list[str] = getattr(error, "__notes__", [])
    if any(note.startswith((_TITLE, _BUDGET)) for note in notes):
        return
    rows = (_by_line and _by_line()) or _by_kind()
    if rows:
        shown = [f"\n  {text}" for _, text in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            shown.append(f"\n  and {len(rows) - _SHOWN} more")
        error.add_note(_TITLE + "".join(shown))


def _is_for_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    cls = type(error)
    if cls.__name__ == "OutOfMemoryError":
        return True
    if cls is not RuntimeError:
        return False
    text: object = error.args[0] if error.args else None
    return type(text) is str and _FAILED in text


def _by_kind() -> list[tuple[int, str]]:
    """Return the bytes of living resources by kind: no lines are known."""
    catch_up()
    counts: dict[str, int] = {}
    storages: dict[str, dict[Hashable, int]] = {}
    for entry in list(LIVE.values()):
        if entry.unit is None and entry() is not None:
            name = entry.kind.name
            counts[name] = counts.get(name, 0) + 1
            found: dict[Hashable, int] = {}
            storages_of(entry, found)
            storages.setdefault(name, {}).update(found)
    rows = [(sum(storages[name].values()), name) for name in counts]
    return [
        (nbytes, f"{bytes_text(nbytes)} in {counts[name]:,} {name} (open a LeakDetector to learn the lines)")
        for nbytes, name in sorted(rows, reverse=True)
        if nbytes > 0
    ]
