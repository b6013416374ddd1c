"""The identity of resources: one entry for each resource, from its birth to its release.

An entry refers weakly to its resource and knows the owner. The sections of this file: the tables of
entries, members that outlive their composite, how an entry is made, what a resource is made of, how
a resource is released, exceptions about failed releases, and notes for errors for want of memory.
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
    "owning_entry_of",
    "storages_of",
    "line_of_birth",
    "story_of",
    "name_lines_with",
    "track",
    "track_once",
    "unit_of",
    "united",
]

# The tables of entries.
#
# There are two, by the resource's ``id``: `LIVE`, and `DEAD` for resources that were released and
# are still referenced. An ``id`` alone proves nothing, because addresses are used again: the weak
# reference of the entry is always compared, too, and its callback removes the entry before the
# address can come back. An owner change, a release and a death each begin with one atomic
# ``dict.pop`` of the entry, and only the thread that gets the entry goes on. So a resource is
# released once without a lock, and no lock is held while user code runs.


def entry_of(resource: object) -> Entry | None:
    """Return the entry of a live resource, or None. A member has an entry of its own."""
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
        # A tuple is dead only if its anchor is: another composite may have kept the anchor alive.
        if entry is not None and DEAD.get(id(entry.anchor())) is not None:
            return entry
    return None


def owning_entry_of(resource: object) -> Entry | None:
    """Return the entry that says who owns a live resource.

    That is its own entry or, for a tuple without one, the entry of its anchor; None if there is
    neither.
    """
    entry = entry_of(resource)
    if entry is None and KINDS.anchored:
        anchor = anchor_of(resource)
        entry = None if anchor is None else entry_of(anchor)
    return entry


def stands_for(entry: Entry, resource: object) -> bool:
    """Return whether an entry belongs to a resource, which the caller keeps alive."""
    if isinstance(entry, AnchoredEntry):
        anchor = anchor_of(resource)
        return anchor is not None and entry.anchor() is anchor
    return entry() is resource


def is_tracked(thing: object) -> bool:
    """Return whether an object is a live resource."""
    return entry_of(thing) is not None


def is_owned(thing: object) -> bool:
    """Return whether a scope owns an object: a live resource, or the memory of a plain array."""
    entry = owning_entry_of(thing)
    if entry is None and KINDS.finders:
        find_births_of((thing,))
        entry = entry_of(thing)
    if entry is not None:
        return owner_of_entry(entry) is not None
    return HOOKS.memory.is_plain(thing) and HOOKS.memory.owner(thing) is not None


def anchor_of(resource: object) -> object | None:
    """Return the member whose identity stands for a tuple's; None for any other resource."""
    kind = kind_of(resource)
    return kind.anchor(resource) if kind is not None and kind.is_anchored else None


def anchor_entry_of(entry: Entry) -> Entry:
    """Return the entry of the anchor of a tuple; for any other resource, its own entry."""
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


# Members that outlive their composite, and members that several composites share.


SHARING: Final = threading.RLock()
"""Held while a member gets or loses a composite.

Re-entrant, because the garbage collector can end a composite on the same thread meanwhile.
"""

hold_across_forks(SHARING, 4)


def next_composite_of(member: Entry, gone: Entry | None = None) -> Entry | None:
    """Return the composite that a shared member belongs to after `gone` has died; None for none."""
    with SHARING:
        # A composite leaves LIVE before it gives up its members. If two composites do so at once,
        # at least the later one finds no other left. `member.unit` may be another composite than
        # the one that gives it up, also if the member is no longer in SHARED.
        others = SHARED.pop(member, ()) if SHARED else ()
        left = [unit for unit in (member.unit, *others) if unit not in (None, gone) and LIVE.get(unit.key) is unit]
        if not left:
            return None
        member.unit = left[0]
        if len(left) > 1:
            SHARED[member] = tuple(left[1:])
        return left[0]


def share(member: Entry, above: Entry) -> bool:
    """Make a resource a member of a composite.

    Return False if it is a member of another composite already. Both share it from now on.
    """
    with SHARING:
        if member.unit is None:
            member.unit = above
            return True
        others = [unit for unit in SHARED.get(member, ()) if LIVE.get(unit.key) is unit]
        SHARED[member] = (*others, above)
        return False


def let_go(entry: Entry) -> None:
    """Let a resource that lost its owner live by its reference count.

    A resource that cannot be weakly referenced is forgotten, and its members become independent.
    """
    if type(entry) is HeldEntry:
        entry.let_go()
    elif type(entry) is StrongEntry and LIVE.get(entry.key) is entry and LIVE.pop(entry.key, None) is not None:
        _free_members(entry, None, [])


def catch_up(scope: ScopeState | None = None) -> None:
    """Record births that nobody saw yet, and settle what dead composites have left behind.

    Called before resources are counted or listed. With a scope, only births that this scope would
    own are looked for.
    """
    # A framework may have several types.
    for finder in dict.fromkeys(KINDS.finders.values()):
        finder(scope)
    if DEAD_COMPOSITES:
        settle()


def find_births_of(resources: Iterable[object], scope: ScopeState | None = None) -> None:
    """Record births that nobody saw yet, of the types of some resources.

    A verb that acts on these resources needs no more.
    """
    asked: list[Finder] = []
    for resource in resources:
        finder = finder_of(resource)
        if finder is not None and finder not in asked:
            asked.append(finder)
            finder(scope)


def finding_births(hides: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a function like `hides` that records unseen births before it answers.

    It does so once for each type of object that it is asked about.
    """
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
    """Make members that outlived their composite independent resources.

    When a composite dies by reference count, its members usually die a moment later. A member that
    something else still holds (``data = packed.data; del packed``) becomes a resource of the
    composite's owner here, before anybody counts. If the composite was a member of another one, the
    member becomes a member of that one.

    If the owner was closed meanwhile, on another thread, the member is released.

    Parameters
    ----------
    closing : ScopeState, optional
        A closed scope that is just releasing what it owns. It still gets the members of its dead
        composites, and releases them itself.
    """
    sweep()
    failures: list[BaseException] = []
    try:
        # A for loop, because an interrupt cannot come between the call of pop and the assignment
        # to the loop variable: the composite would be lost.
        for dead_composite in iter(DEAD_COMPOSITES.pop, None):
            try:
                _free_members(dead_composite, closing, failures)
            except BaseException:
                # The next call goes on with it.
                DEAD_COMPOSITES.append(dead_composite)
                raise
    except IndexError:
        pass
    if failures:
        raise_failures(failures, "releasing members of composites whose scope has ended", None)


def settle_earlier() -> None:
    """Settle all dead composites but the last one, whose members may be about to die too."""
    try:
        last = DEAD_COMPOSITES.pop()
    except IndexError:
        return
    try:
        settle()
    finally:
        DEAD_COMPOSITES.append(last)


def _free_members(unit: Entry, closing: ScopeState | None, failures: list[BaseException]) -> None:
    """Make the members that outlived a composite members of its unit, or resources of its owner.

    Can be called again after an interrupt: the composite keeps its members and its owner until the
    end.

    Parameters
    ----------
    unit : Entry
        The dead composite.
    closing : ScopeState or None
        As for `settle`.
    failures : list of BaseException
        Gets what releases raise.
    """
    owner = unit.owner
    survivors: list[Entry] = []
    gone: list[Entry] = []
    pending = list(reversed(unit.members))
    while pending:
        member = pending.pop()
        if next_composite_of(member) is not None or member.unit not in (None, unit, *gone):
            # It is a member of another live composite, or of one that is being released.
            continue
        if LIVE.get(member.key) is member and member() is not None:
            survivors.append(member)
        elif member.members:
            # A composite inside that died as well: its members are treated like those of `unit`.
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
            # Another thread released it while it was in no scope's `_entries`.
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
    """Make the entry of a resource that no other thread knows yet, and put it into `LIVE`.

    The entry is unowned and not counted. Members get no entries.
    """
    entry = make_entry(resource, kind)
    LIVE[entry.key] = entry
    return entry


def track_once(resource: object, kind: Kind) -> tuple[Entry | None, bool]:
    """Return the entry of a resource, which other threads may know; make one if there is none.

    Returns
    -------
    entry : Entry or None
        The entry; None if the resource has been released.
    is_new : bool
        Whether this call made the entry, as `track` does.
    """
    entry = entry_of(resource)
    is_new = False
    if entry is None and dead_entry_of(resource) is None:
        made = make_entry(resource, kind)
        entry = LIVE.setdefault(made.key, made)
        if entry is not made and not stands_for(entry, resource):
            # A stale entry: its resource is gone, but its callback was interrupted.
            LIVE[made.key] = entry = made
        is_new = entry is made
    # DEAD is asked last. A release on another thread may have taken its entry out of LIVE before a
    # new one was put in here; the released entry is in DEAD then.
    if entry is not None and dead_entry_of(resource) is None:
        return entry, is_new
    if entry is not None and is_new:
        LIVE.pop(entry.key, None)
    return None, False


# What a resource is made of: its members, and the storages, arrays and devices behind all of them.


def parts_of(entry: Entry) -> Iterator[tuple[Entry, Any]]:
    """Yield the entry and the resource of a live resource, its members, and their members."""
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
    """Add the storages of a live resource and its members to `found`: bytes by identity."""
    for part, resource in parts_of(entry):
        for identity, nbytes in part.kind.storages(resource):
            found[identity] = nbytes


def arrays_of(entry: Entry) -> list[object]:
    """Return the arguments of `Memory.move` for a live resource and its members: `Kind.memory`."""
    return [array for part, resource in parts_of(entry) for array in part.kind.memory(resource)]


def device_of_entry(entry: Entry) -> str:
    """Return the normalised device name of a resource; of a composite, that of a first member."""
    resource = entry()
    found: tuple[Entry, Any] | None = (entry, resource)
    while found is not None:
        entry, resource = found
        found = next(((member, one) for member in entry.members if (one := member()) is not None), None)
    return device_name(entry.kind.device(resource))


def named_members(resource: object, kind: Kind) -> Iterator[tuple[str, object]]:
    """Yield the name, for messages, and the resource of each member of a composite.

    Resources in containers that `Kind.members` returns are members, too.
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


# The release of a resource, and the error for its later use.


def _leave_alive(entry: Entry, resource: object, owner: ScopeState | None) -> None:
    """Undo a release that failed: the resource is alive, unowned, and can be released again.

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
        # If the release of its composite failed as well, the composite is in LIVE again, and this
        # stays its member.
        if LIVE.get(entry.unit.key) is not entry.unit:
            entry.unit = None
            if not entry.counted:
                entry.counted = ledger.count_birth(in_scope=False)
    elif owner is None:
        ledger.disposed_unscoped -= 1
    else:
        ledger.disposed_in_scope -= 1
        ledger.detached += 1
    # An unowned object that cannot be weakly referenced is forgotten.
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

    The members of members are released too, also those of a member that has died. If an interrupt
    was raised and the resource says that it is not disposed, its release is called once more: the
    interrupt may have come before the release began.

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
        # A composite and its members refer to each other: without this they would be a cycle, as
        # no callback will follow.
        entry.members = ()
    try:
        return united(failures, f"releasing a {entry.kind.name}") if len(failures) > 1 else next(iter(failures), None)
    finally:
        # The failures' tracebacks refer to this frame: a full list would make a cycle.
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
    # A composite that cannot be weakly referenced and has no entry: its members have entries.
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
        f"{described} has been disposed{scope}{site and f' entered at {site}'}{story}. Write ds.move_to_outer(x) in "
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


# Exceptions about failed releases.
#
# An interrupt is raised as itself, so that ``except KeyboardInterrupt`` and an event loop find it.
# All other exceptions are raised as one group. If another exception is propagating, the group is
# put into its ``__context__`` instead.


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception stops the program or a part of it, and is raised as itself.

    `RecursionError` is one, too.
    """
    return not isinstance(error, Exception) or isinstance(error, RecursionError)


def raise_failures(failures: list[BaseException], doing: str, in_flight: BaseException | None) -> None:
    """Raise the failures as one exception, or add them to the exception that is propagating.

    An interrupt among the failures propagates instead of `in_flight`, which goes into its context,
    as Python does with an exception that is raised while another one is handled.

    Parameters
    ----------
    failures : list of BaseException
        What releases raised. It is emptied.
    doing : str
        What was done, for the message.
    in_flight : BaseException or None
        The exception that is propagating.
    """
    count = len(failures)
    others = [failure for failure in failures if failure is not in_flight]
    # The failures' tracebacks refer to frames that hold this list: a full list would make a cycle.
    failures.clear()
    if in_flight is not None:
        interrupt = next(filter(is_interrupt, others), None)
        if interrupt is None:
            in_flight.add_note(f"while {doing}, {count} releases failed; they are in its __context__")
            _append_to_contexts(in_flight, others, _message(doing, count))
            return
        _put_before(interrupt, in_flight)
        del interrupt, in_flight
    raised = united(others, doing)
    others.clear()
    try:
        raise_with_context(raised)
    finally:
        # The traceback refers to this frame: the reference would make a cycle.
        del raised


def raise_with_context(error: BaseException) -> None:
    """Raise an exception without changing its context.

    Python would replace the context by the exception that is being handled.
    """
    context = error.__context__
    try:
        raise error
    finally:
        if context is not None:
            error.__context__ = context
        # The traceback refers to this frame: these references would make a cycle.
        del error, context


def united(failures: list[BaseException], doing: str) -> BaseException:
    """Return one exception for several: an interrupt with the others as context, or a group."""
    interrupt = next(filter(is_interrupt, failures), None)
    if interrupt is None:
        return BaseExceptionGroup(_message(doing, len(failures)), failures)
    others = [failure for failure in failures if failure is not interrupt]
    if others:
        interrupt.add_note(f"while {doing}, {len(others)} releases failed as well; they are in its __context__")
        _append_to_contexts(interrupt, others, _message(doing, len(others)))
    return interrupt


def _message(doing: str, count: int) -> str:
    return f"{doing}: {count} of the releases failed; all others were done"


def _put_before(interrupt: BaseException, in_flight: BaseException) -> None:
    """Put an exception into the context of the interrupt that replaces it, if Python did not."""
    chain = _chain(interrupt)
    if id(in_flight) not in chain and id(interrupt) not in _chain(in_flight):
        chain.popitem()[1].__context__ = in_flight


def _append_to_contexts(carrier: BaseException, failures: list[BaseException], message: str) -> None:
    """Put the group of failures at the end of the chain of an exception's contexts."""
    chain = _chain(carrier)
    fresh = [failure for failure in failures if id(failure) not in chain]
    for failure in fresh:
        _cut_context(failure, chain)
    if fresh:
        chain.popitem()[1].__context__ = BaseExceptionGroup(message, fresh)


def _chain(error: BaseException) -> dict[int, BaseException]:
    """Return an exception, its context, the context's context and so on, by ``id``."""
    chain: dict[int, BaseException] = {}
    following: BaseException | None = error
    while following is not None and id(following) not in chain:
        chain[id(following)] = following
        following = following.__context__
    return chain


def _cut_context(failure: BaseException, chain: dict[int, BaseException]) -> None:
    """Remove the exceptions of a chain from a failure's chain of contexts.

    Python put them there. The failure goes into their context, so this would be a cycle.
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


# Notes about live memory, for an error for want of memory that leaves a scope.

_MOST_ROWS: Final = 5
"""So many lines, or kinds, are listed in a note."""
_TITLE: Final = "most of the live memory of tensors:"
"""How the note begins."""
_BUDGET_TITLE: Final = "the budget of "
"""How the note of `Memory.explain` begins."""
_ALLOCATION_FAILED: Final = "can't allocate memory"
"""Part of the message of PyTorch's CPU allocator, which raises a plain RuntimeError."""

_live_bytes_by_line: Callable[[], list[tuple[int, str]]] | None = None


def name_lines_with(function: Callable[[], list[tuple[int, str]]]) -> None:
    """Set the function that returns live bytes and the text of a line, the most bytes first."""
    global _live_bytes_by_line
    _live_bytes_by_line = function


def explain(error: BaseException) -> None:
    """Add a note about live memory to an exception for want of memory that leaves a scope.

    Nothing is added if an inner scope has added it. If a budget refused the memory, notes about the
    budget are added instead.
    """
    if isinstance(error, MemoryError):
        HOOKS.memory.explain(error)
    if not _is_for_want_of_memory(error):
        return
    notes: list[str] = getattr(error, "__notes__", [])
    if any(note.startswith((_TITLE, _BUDGET_TITLE)) for note in notes):
        return
    rows = (_live_bytes_by_line and _live_bytes_by_line()) or _live_bytes_by_kind()
    if rows:
        shown = [f"\n  {text}" for _, text in rows[:_MOST_ROWS]]
        if len(rows) > _MOST_ROWS:
            shown.append(f"\n  and {len(rows) - _MOST_ROWS} more")
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
    return type(text) is str and _ALLOCATION_FAILED in text


def _live_bytes_by_kind() -> list[tuple[int, str]]:
    """Return the bytes of live resources by kind, the most first, for when no lines are known."""
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
