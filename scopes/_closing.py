"""The end of a scope: it releases what it owns, and gives the plain memory in use to the outer scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._compiled import HOT
from ._current import CLOSED, OPEN
from ._entry import LIVE, Entry
from ._estates import ESTATES, settle
from ._instruments import LISTENERS
from ._memory import MEMORY
from ._pages import return_pages
from ._releases import release

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["hand_over_memory", "release_all_but", "release_owned", "shut"]


def shut(scope: DisposeScope) -> list[BaseException]:
    """Close a scope, whatever its state was; returns what releases raised."""
    if ESTATES:
        settle()
    keeps_pages = scope.keep_pages and scope._state == OPEN
    scope._state = CLOSED
    scope._direct = False
    scope._frame = None
    scope._passed_over = ()
    failures: list[BaseException] = []
    if scope._entries:
        failures = release_owned(scope)
    if keeps_pages:
        return_pages()
    if LISTENERS:
        for listener in LISTENERS:
            listener.closed(scope)
    return failures


def hand_over_memory(scope: DisposeScope, failures: list[BaseException], in_flight: BaseException | None) -> None:
    """Give the plain memory in use to the outer scope, and say what a strict scope has to say about it."""
    escaped = MEMORY[0].closed(scope)
    if escaped is None:
        return
    if in_flight is not None:
        # Its traceback holds the frames, and they the arrays: no wonder.
        in_flight.add_note(str(escaped))
    elif failures:
        failures.append(escaped)
    else:
        try:
            raise escaped
        finally:
            # This frame is in its traceback: kept here, it would be a cycle.
            del escaped


def release_newest_in_python(entries: dict[Entry, None], failures: list[BaseException], /) -> None:
    """Release entries, the newest first, until none is left; what releases raise goes to the failures."""
    while True:
        try:
            entry, _ = entries.popitem()
        except KeyError:
            return
        failure = release(entry)
        if failure is not None:
            failures.append(failure)
            # This frame is reached from its traceback: kept here, it would be a cycle.
            failure = None


release_newest = release_newest_in_python
if HOT is not None:
    release_newest = HOT.release_newest


def release_owned(scope: DisposeScope) -> list[BaseException]:
    """Release the newest first, as ``contextlib.ExitStack`` does, until nothing is left."""
    failures: list[BaseException] = []
    entries = scope._entries
    while True:
        try:
            release_newest(entries, failures)
            if not ESTATES:
                return failures
            # A composite of this scope died by a release above: its members are still this scope's to release.
            settle(scope)
            if not entries:
                return failures
        except BaseException as error:
            # An interrupt between two releases: what it tore out of the list is found by its owner.
            failures.append(error)
            entries.update(dict.fromkeys(entry for entry in list(LIVE.values()) if entry.owner is scope))


def release_all_but(scope: DisposeScope, kept: set[Entry]) -> list[BaseException]:
    """Release what is owned now, the newest first; what a release brings into being meanwhile stays."""
    failures: list[BaseException] = []
    for entry in list(scope._entries)[::-1]:
        # Taking the entry out is the claim, as for a move.
        if entry not in kept and scope._entries.pop(entry, 0) is None:
            failure = release(entry)
            if failure is not None:
                failures.append(failure)
                failure = None
    return failures
