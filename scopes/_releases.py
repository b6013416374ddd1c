"""The release of a resource, and the error that whoever uses it afterwards meets."""

from __future__ import annotations

from ._compiled import HOT
from ._entry import DEAD, LIVE, Entry, StrongEntry, dead_entry_of, entry_of
from ._errors import DisposedError
from ._estates import heir_of
from ._instruments import LISTENERS
from ._kinds import Kind
from ._parts import named_members
from ._statistics import LOCAL

__all__ = ["check_alive", "disposed_error", "is_released", "release", "release_in_python", "story_of"]


def release_in_python(entry: Entry, with_members: bool = True, /) -> BaseException | None:
    """Release a resource, its members with it. Idempotent; whoever takes the entry out of `LIVE` does the work.

    Returns
    -------
    BaseException or None
        What the release raised, for the caller to collect; members are released all the same.
    """
    # Why none is released twice, wherever another thread takes over. Let two entries of one resource be taken out of
    # `LIVE` here, the first by one thread and then the second by another. Whoever makes the entry of a resource that
    # others may know (`track_once`) puts it there only while none is: the second came after the first had left, so that
    # the other thread found it there, and looked into `DEAD`, after the first one's entry had got there. That one
    # stands for the resource as long as it is alive, which it is, for both threads hold it: the second returns. Nor was
    # its entry in use, because `track_once` looks there as well, after it has put it into `LIVE`. Of threads with the
    # same entry, one takes it out. Compiled, all of it is one step.
    if LIVE.get(entry.key) is not entry:
        return None
    resource = entry()
    remembered = resource is not None and type(entry) is not StrongEntry
    if remembered:
        dead = DEAD.get(entry.key)
        if type(entry) is Entry and dead is not None and dead is not entry and dead() is resource:
            LIVE.pop(entry.key, None)
            return None
        # Before the claim, so that at no moment it is in neither table: another thread would take it for a new one.
        DEAD[entry.key] = entry
    claimed = LIVE.pop(entry.key, None)
    if claimed is not entry:
        if claimed is not None and not remembered:
            # Another resource has come to the address, or one that nobody remembers has been attached again.
            LIVE.setdefault(entry.key, claimed)
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


release = release_in_python
if HOT is not None:
    release = HOT.release


def _release_members(unit: Entry, failure: BaseException | None) -> BaseException | None:
    """Release the members of a composite and theirs, also below one that has died, and collect what fails."""
    failures = [] if failure is None else [failure]
    failed: BaseException | None = None
    pending = list(reversed(unit.members))
    while pending:
        member = pending.pop()
        if heir_of(member) is not None:
            continue
        failed = release(member, False)
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
