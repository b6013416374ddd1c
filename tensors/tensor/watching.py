"""Watching plain arrays for a leak detector: the arena serves contexts outside of scopes too, and logs its blocks.

They stay nobody's. Imported once the leak detector is.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Hashable, Iterable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, final

from ...leaks.births.log import LOG, Row, Rows, Seen, see
from ...leaks.detector.recording import CACHES
from ...leaks.detector.watching import RELEASES, add_watcher
from ...scopes.context import current_scope
from ..arena.extension import ARENA
from ..numpy.references import show_edges
from .tensor import TENSOR, array_of, exported_identities

if TYPE_CHECKING:
    from ...leaks.births.log import Escape
    from ...scopes.identity import Entry
    from ...scopes.kinds import Kind
    from ...scopes.scope import DisposeScope

__all__ = [
    "ALIASES",
    "ArrayWatcher",
    "watch_arrays",
]

_NAME: Final = "numpy.ndarray"

ALIASES: Final[list[Callable[[], Iterable[int]]]] = []
"""Called for the addresses of memory that other watchers tell of, and that may be an array's."""


class _Local(threading.local):
    # What served this thread's context before, while the arena does for a detector.
    before: object = None


_local: Final = _Local()


@final
class ArrayWatcher:
    """The one instance is among the watchers: see `Watcher`."""

    __slots__ = ()

    kind: Kind | None = None

    def begin(self) -> None:
        """Let the arena serve this context."""
        ARENA.watch(True)
        before = ARENA.swap_handler(None)
        if before is not None:
            _local.before = before

    def end(self) -> None:
        """Give it back, unless a scope is open in it, which does so when it is left."""
        ARENA.watch(False)
        before, _local.before = _local.before, None
        if current_scope() is None:
            if before is None:
                ARENA.reset()
            else:
                ARENA.swap_handler(before)

    def look(self) -> None:
        """Nothing: births are recorded when they happen."""

    def recall(self, entry: Entry) -> Row | None:
        """Nothing: the entries of tensors are in the log themselves."""
        return None

    def seen(self, after: int, until: int, but: Container[Hashable]) -> tuple[list[Seen], Rows]:
        """The blocks of a window that are in use now."""
        addresses, rows = LOG.blocks(after, until)
        pieces, rows = see(_NAME, but, None, LOG.is_in_use, addresses, rows, partial(_escape, exported_identities()))
        aliased = _aliased(addresses)
        if aliased:
            kept = [place for place, piece in enumerate(pieces) if piece.identity not in aliased]
            pieces, rows = [pieces[place] for place in kept], [rows[place] for place in kept]
        return pieces, rows


def _aliased(addresses: list[int]) -> set[Hashable]:
    """The blocks in which memory lies that others tell of."""
    pointers = sorted(pointer for told in ALIASES for pointer in told()) if addresses else []
    if not pointers:
        return set()
    starts = sorted(addresses)
    found: set[Hashable] = set()
    for pointer in pointers:
        place = bisect_right(starts, pointer) - 1
        row = LOG.recall_block(starts[place]) if place >= 0 else None
        if row is not None and pointer < starts[place] + max(row.nbytes, 1):
            found.add(starts[place])
    return found


def _released(entry: Entry, owner: DisposeScope | None) -> None:
    """Remember the block of a tensor that is nobody's.

    Of a scope's it is known by the end of the scope.
    """
    if owner is None:
        tensor = entry()
        block = None if tensor is None else ARENA.block(array_of(tensor))
        if block is not None:
            LOG.escape(block[0])


def _escape(exported: Container[Hashable], block: Seen, _: int) -> Escape | None:
    # A plain array that a tensor was made of may well outlive it: only what was exported from one
    # escapes with it.
    is_alias = block.identity in exported
    if ARENA.escaped(block.identity):
        return "disposed" if is_alias else "due"
    return "disposed" if is_alias and LOG.has_escaped(block.identity) else None


def _cached_nbytes() -> int:
    nbytes: int = ARENA.statistics()[3]
    return nbytes


def watch_arrays() -> None:
    """Watch plain arrays whenever a detector is open, from now on."""
    show_edges()
    # The bytes of a view are those of its base, which is a block like any other.
    LOG.describe_kind(TENSOR, "Tensor", attrgetter("_array.nbytes"), None, "cpu:0", True)
    CACHES.append(_cached_nbytes)
    ARENA.bind_log(LOG.api)
    RELEASES[id(TENSOR)] = _released
    add_watcher(ArrayWatcher())
