"""The one birth log of the process, compiled where that could be built."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from .._current import CURRENT, resolve
from .._entry import Entry
from .._parts import device_of_entry, storages_of
from ._birthlog_python import BirthLog
from ._site import rank_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .._kinds import Kind
    from ._sightings import Disposal

__all__ = ["DISPOSALS", "LOG", "ROWS", "KindRow", "Row", "SiteRow"]

Row = tuple[int, int, int, int, float, str | None, float]
"""What is known of a birth: number of its site, bytes, its own number, closings of scopes until then, time by
``time.monotonic()``, name of the scope (``""`` without a name, None outside every scope), and how many births it stands
for: 1, or more where births are sampled."""

KindRow = tuple[str, Callable[[Any], int] | None, Callable[[Any], object] | None, str, bool]
"""What the log asks of a kind: its name; what tells the bytes of an instance, in one quick call, or None; what gives
the object that stands for its memory, or None; its device, where there is only one; whether its bytes are those of
memory that is seen to be born by itself."""

SiteRow = tuple[str, str, str | None, tuple[tuple[CodeType, int], ...], int, float, int, int]
"""What is known of a site: kind, device, the call, its places (innermost first), how many were born, how many live,
their bytes now, and the most at once."""

DISPOSALS: Final[dict[Entry, tuple[Disposal, Row]]] = {}
"""Of the disposed resources that were seen to be born: where they were disposed, and the row of their birth.
The log takes out what has died."""

ROWS: Final[dict[int, KindRow]] = {}
"""By ``id`` of a kind, what the floor above has to say of it: a kind of its own, which lives as long as the process."""


def _compiled() -> Any:
    if os.environ.get("DISPOSESCOPE_PURE_BIRTHLOG"):
        return None
    try:
        return import_module("._birthlog", __package__)
    except ImportError:
        return None


LOG: Final[Any] = _compiled() or BirthLog()
"""The log: ``_birthlog.pyi`` describes it."""


def _kind_row(kind: Kind) -> KindRow:
    row = ROWS.get(id(kind))
    if row is None:
        # A composite has the bytes of its members, which were born before it.
        row = kind.name, None, None, "", kind.members is not None
    return row


def _measure(entry: Entry) -> tuple[int, str]:
    storages: dict[Hashable, int] = {}
    storages_of(entry, storages)
    return sum(storages.values()), device_of_entry(entry)


LOG.bind(rank_of, _kind_row, _measure, CURRENT, resolve, DISPOSALS, Entry)
if hasattr(os, "register_at_fork"):
    # What the parent knew is the parent's to tell.
    os.register_at_fork(after_in_child=LOG.clear)
