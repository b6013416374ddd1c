"""Records of the resources in a snapshot, tables of records, and comparisons of snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, make_dataclass
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, final

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import Site

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = [
    "COLUMNS",
    "DRAFT_OF_RECORD",
    "Comparison",
    "Growth",
    "Record",
    "State",
    "cells_of",
    "compare",
    "html_table",
    "nbytes_of",
]

State = Literal["alive", "disposed"]
"""``"alive"``, or ``"disposed"`` while something still references it."""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """A resource at the time of a snapshot, without a reference to it.

    Attributes
    ----------
    kind : str
        The name of its kind.
    shape : tuple of int or None
        Its shape, where its kind has one.
    dtype : str or None
        The name of its dtype, where its kind has one.
    nbytes : int
        The bytes of the storages that it pins, each as a whole: a view pins all of its base. 0 once
        it is disposed.
    used_nbytes : int
        The bytes of its own elements; fewer than `nbytes` for a view.
    storages : tuple of (int, int)
        The storages that it pins, each as a number and its bytes. In one snapshot the same storage
        has the same number.
    site : Site or None
        The line where it was born; None where no detector was watching.
    disposal : Site or None
        The line where it was disposed.
    scope : str or None
        The name of the scope that it was born in, ``""`` for a scope without a name, None where it
        was born outside every scope. Without a detector, the scope that owns it now.
    age_s : float or None
        Seconds since its birth.
    generation : int or None
        How many scopes in the whole process have been closed since its birth.
    state : {"alive", "disposed"}
        Whether it is alive, or was disposed while something still references it.
    frames : tuple of Site
        The line of its birth and the lines that called it, innermost first, as many as the detector
        kept.
    device : str or None
        The device that it is on, or was.
    op : str or None
        The name of the call that made it, where it is known.
    """

    kind: str
    shape: tuple[int, ...] | None
    dtype: str | None
    nbytes: int
    used_nbytes: int
    storages: tuple[tuple[int, int], ...]
    site: Site | None
    disposal: Site | None
    scope: str | None
    age_s: float | None
    generation: int | None
    state: State
    frames: tuple[Site, ...] = ()
    device: str | None = None
    op: str | None = None

    @property
    def is_view(self) -> bool:
        """Return whether the resource pins more memory than it uses."""
        return self.state == "alive" and self.used_nbytes < self.nbytes

    def __str__(self) -> str:
        parts = [self.kind]
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.shape is not None:
            parts.append(repr(self.shape))
        return " ".join(parts)


DRAFT_OF_RECORD: Final[type[Record]] = make_dataclass("Record", [field.name for field in fields(Record)], slots=True)
"""A record that is not frozen yet: its class becomes `Record` once it is filled.

A frozen dataclass sets each field through ``object.__setattr__``, which takes five times as long;
of a million arrays there are a million records.
"""


# A snapshot as a table, for a terminal and for notebooks.


COLUMNS: Final = ("kind", "bytes", "state", "scope", "born at")
_ROWS: Final = 100
"""So many rows of a table are shown in a notebook."""


def cells_of(record: Record) -> tuple[str, str, str, str, str]:
    """Return the cells of one row."""
    scope = "-" if record.scope is None else record.scope or "(unnamed)"
    return str(record), bytes_text(record.nbytes), record.state, scope, str(record.site or "-")


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], count: int) -> str:
    """Return a table as HTML: the first hundred rows, and the number of the others.

    The second column is aligned to the right. `count` is the number of all rows.
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for row in islice(rows, _ROWS):
        kind, nbytes, *rest = (escape(cell) for cell in row)
        others = "".join(f"<td>{cell}</td>" for cell in rest)
        lines.append(f'<tr><td>{kind}</td><td style="text-align: right">{nbytes}</td>{others}</tr>')
    lines += ["</tbody>", "</table>"]
    more = count - _ROWS
    if more > 0:
        lines.append(f"<p>and {more:,} more</p>")
    return "\n".join(lines)


# The changes between two snapshots.


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """How many more resources a site has, and more bytes of storages, each storage once."""

    site: Site | None
    count: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.site or 'unknown site'}: {self.count:+d}, {self.nbytes:+d} bytes"


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes from an older snapshot to a newer one.

    Attributes
    ----------
    new : tuple of Record
        The resources that only the newer snapshot has, in the order of birth.
    gone : tuple of Record
        The resources that only the older snapshot has, as they were then.
    grown : tuple of Growth
        The sites that have more resources or more bytes than before, the most bytes first.
    """

    new: tuple[Record, ...]
    gone: tuple[Record, ...]
    grown: tuple[Growth, ...]


def compare(
    records: tuple[Record, ...],
    entries: tuple[Hashable, ...],
    old_records: tuple[Record, ...],
    old_entries: tuple[Hashable, ...],
) -> Comparison:
    """Return the changes between the records of two snapshots.

    The entries identify the records of the same resource.
    """
    before, now = set(old_entries), set(entries)
    new = tuple(record for record, entry in zip(records, entries, strict=True) if entry not in before)
    gone = tuple(record for record, entry in zip(old_records, old_entries, strict=True) if entry not in now)
    old_sites, sites = _by_site(old_records), _by_site(records)
    grown: list[Growth] = []
    for site, current in sites.items():
        past = old_sites.get(site, [])
        growth = Growth(site, len(current) - len(past), nbytes_of(current) - nbytes_of(past))
        if growth.count > 0 or growth.nbytes > 0:
            grown.append(growth)
    grown.sort(key=lambda growth: (-growth.nbytes, -growth.count, str(growth.site)))
    return Comparison(new, gone, tuple(grown))


def nbytes_of(records: Iterable[Record]) -> int:
    """Return the bytes of the storages of some records of one snapshot, each storage once."""
    return sum({number: nbytes for record in records for number, nbytes in record.storages}.values())


def _by_site(records: Iterable[Record]) -> dict[Site | None, list[Record]]:
    sites: dict[Site | None, list[Record]] = {}
    for record in records:
        sites.setdefault(record.site, []).append(record)
    return sites
