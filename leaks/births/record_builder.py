"""Builds records of what is there: of resources, and of memory that no resource stands for."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, final

from ...scopes.errors import DisposedError
from ...scopes.identity import DEAD, LIVE, Entry, device_of_entry, storages_of
from ..report.records import Record
from .log import DISPOSALS, LOG, Disposal, Row, RowList, Seen, SiteFacts, Sites

if TYPE_CHECKING:
    from ...scopes.kinds import Layout
    from .log import Rows

__all__ = [
    "RecordBuilder",
    "layout_of",
]

_RecordLists = tuple[list[Record], list[Entry], "Rows"]


@final
class RecordBuilder:
    """Where the records of one snapshot are made.

    Parameters
    ----------
    closings : int
        How many scopes had been closed until now, by the count that the births were made with.

    Attributes
    ----------
    numbers : dict
        Identities of storages, as `LOG.key_of` gives them, are exchanged for numbers at once: one of them may be the
        storage itself.
    sites : Sites
        What is known of the lines.
    disposals : dict
        For what was disposed, which closing of a scope did it, where a detector saw it.
    """

    __slots__ = ("_closings", "_now_s", "disposals", "numbers", "sites")

    def __init__(self, closings: int) -> None:
        self._now_s = time.monotonic()
        self._closings = closings
        self.numbers: dict[Hashable, int] = {}
        self.sites = Sites()
        self.disposals: dict[Entry, int] = {}

    def build_records(self, entries: list[Entry], rows: Rows) -> _RecordLists:
        """The records of those of some entries whose resources are there, with entry and row of each.

        Members of composites are left out.
        """
        if type(rows) is RowList:
            return self.build_records_in_python(entries, rows)
        # Compiled rows: the log makes records of what lives by itself, and has all others made here.
        told: _RecordLists = LOG.build_records(
            Record, self.numbers, self.sites, self._now_s, self._closings, DEAD, DISPOSALS, self.record, entries, rows
        )
        return told

    def build_records_in_python(self, entries: list[Entry], rows: Rows) -> _RecordLists:
        """The same, one by one."""
        records: list[Record] = []
        subjects: list[Entry] = []
        kept = RowList()
        for place, entry in enumerate(entries):
            row = rows[place]
            record = self.record(entry, row)
            if record is not None:
                records.append(record)
                subjects.append(entry)
                kept.append(row)
        return records, subjects, kept

    def record(self, entry: Entry, row: Row | None) -> Record | None:
        """The record of one resource; None where it is not there, or belongs to a composite that is."""
        alive = LIVE.get(entry.key) is entry
        if (not alive and DEAD.get(entry.key) is not entry) or _belongs_to_composite(entry):
            return None
        disposal = _disposal_of(entry)
        layout: Layout | None = None if disposal is None else disposal.layout
        resource: Any = entry()
        if resource is None:
            return None
        kind = entry.kind
        storages: dict[Hashable, int] = {}
        facts: SiteFacts | None = None if row is None else self.sites(row[0])
        device: str | None = None
        try:
            if alive and entry.members:
                storages_of(entry, storages)
            elif alive:
                storages.update(kind.storages(resource))
            if alive and kind.layout is not None:
                layout = kind.layout(resource)
            if alive:
                device = device_of_entry(entry) if facts is None else facts.device
        except DisposedError:
            # Another thread disposes it at this moment.
            alive = False
            storages.clear()
        del resource
        if disposal is not None:
            self.disposals[entry] = disposal.closings
        nbytes = sum(storages.values())
        owner = entry.owner
        return Record(
            kind=kind.name,
            shape=None if layout is None else layout[0],
            dtype=None if layout is None else layout[1],
            nbytes=nbytes,
            used_nbytes=nbytes if layout is None or not alive else layout[2],
            storages=tuple((self._number_of(identity), size) for identity, size in storages.items()),
            site=None if facts is None else facts.site,
            disposal=None if disposal is None else self.sites.line(disposal.mark),
            scope=row[5] if row is not None else None if owner is None else owner.name or "",
            age_s=None if row is None else self._now_s - row[4],
            generation=None if row is None else self._closings - row[3],
            state="alive" if alive else "disposed",
            frames=() if facts is None else facts.frames,
            device=device if alive else None,
            op=None if facts is None else facts.op,
        )

    def build_memory_records(self, pieces: list[Seen], rows: Rows) -> list[Record]:
        """The records of some memory that is there."""
        if type(rows) is RowList:
            return self.build_memory_records_in_python(pieces, rows)
        records: list[Record] = LOG.build_memory_records(
            Record, self.numbers, self.sites, self._now_s, self._closings, Seen, pieces, rows
        )
        return records

    def build_memory_records_in_python(self, pieces: list[Seen], rows: Rows) -> list[Record]:
        """The same, one by one."""
        return [self._memory(piece, row) for place, piece in enumerate(pieces) if (row := rows[place]) is not None]

    def _number_of(self, identity: Hashable) -> int:
        return self.numbers.setdefault(LOG.key_of(identity), len(self.numbers))

    def _memory(self, piece: Seen, row: Row) -> Record:
        facts = self.sites(row[0])
        return Record(
            kind=piece.kind,
            shape=None,
            dtype=None,
            nbytes=piece.nbytes,
            used_nbytes=piece.nbytes,
            storages=((self._number_of(piece.identity), piece.nbytes),),
            site=facts.site,
            disposal=None,
            scope=row[5],
            age_s=self._now_s - row[4],
            generation=self._closings - row[3],
            state="alive",
            frames=facts.frames,
            device=piece.device,
            op=facts.op,
        )


def layout_of(entry: Entry) -> Layout | None:
    """Shape, dtype and own bytes of a resource, where its kind tells."""
    layout = entry.kind.layout
    if layout is None:
        return None
    resource = entry()
    return None if resource is None else layout(resource)


def _disposal_of(entry: Entry) -> Disposal | None:
    disposed = DISPOSALS.get(entry)
    return None if disposed is None else disposed[0]


def _belongs_to_composite(entry: Entry) -> bool:
    unit = entry.unit
    return unit is not None and (LIVE.get(unit.key) is unit or DEAD.get(unit.key) is unit) and unit() is not None
