"""Build the records of a snapshot: of resources, and of memory that no resource stands for."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, final

from ...scopes.base.errors import DisposedError
from ...scopes.identity import DEAD, LIVE, Entry, device_of_entry, storages_of
from ..report.records import DRAFT_OF_RECORD, Record
from .compiled import untrack
from .log import DISPOSALS, BirthRows, Disposal, RecordedMemory, Row, SiteFacts, Sites

if TYPE_CHECKING:
    from ...scopes.kinds import Layout

__all__ = [
    "RecordBuilder",
    "layout_of",
]


@final
class RecordBuilder:
    """Builds the records of one snapshot.

    Parameters
    ----------
    closings : int
        How many scopes the log had seen closed when the snapshot was taken.

    Attributes
    ----------
    numbers : dict
        By the identity of a storage, its number in this snapshot. Records have the number, because
        the identity may be the storage itself, which they would keep alive.
    sites : Sites
        The facts about the sites in the log.
    disposals : dict
        For each disposed resource whose disposal was recorded, how many scopes had been closed
        then.
    """

    __slots__ = ("_closings", "_now_s", "disposals", "numbers", "sites")

    def __init__(self, closings: int) -> None:
        self._now_s = time.monotonic()
        self._closings = closings
        self.numbers: dict[Hashable, int] = {}
        self.sites = Sites()
        self.disposals: dict[Entry, int] = {}

    def build_records(
        self, entries: Sequence[Entry], rows: Sequence[Row | None]
    ) -> tuple[list[Record], list[Entry], list[Row | None]]:
        """Return the records of those resources that are still there, with their entries and rows.

        Disposed resources that something still refers to have records too. Members of composites
        are left out.
        """
        records: list[Record] = []
        subjects: list[Entry] = []
        kept: list[Row | None] = []
        for entry, row in zip(entries, rows, strict=True):
            record = self._record(entry, row)
            if record is not None:
                records.append(record)
                subjects.append(entry)
                kept.append(row)
        untrack(records)
        return records, subjects, kept

    def _record(self, entry: Entry, row: Row | None) -> Record | None:
        """Return the record of a resource; None if it is gone, or part of a living composite."""
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
        facts: SiteFacts | None = None if row is None else self.sites(row.site)
        device: str | None = None
        try:
            if alive and entry.members:
                storages_of(entry, storages)
            elif alive:
                storages.update(kind.storages(resource))
            if alive:
                layout = kind.layout(resource)
            if alive:
                device = device_of_entry(entry) if facts is None else facts.device
        except DisposedError:
            # Another thread is disposing it.
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
            scope=row.scope if row is not None else None if owner is None else owner.name or "",
            age_s=None if row is None else self._now_s - row.at_s,
            generation=None if row is None else self._closings - row.closings,
            state="alive" if alive else "disposed",
            frames=() if facts is None else facts.frames,
            device=device if alive else None,
            op=None if facts is None else facts.op,
        )

    def build_memory_records(self, pieces: Sequence[RecordedMemory], rows: BirthRows) -> list[Record]:
        """Return a record of each piece of memory."""
        # Some of it may have been recorded only when it was looked for.
        self._now_s = time.monotonic()
        records = [self._memory_record(piece, row) for piece, row in zip(pieces, rows, strict=True)]
        untrack(records)
        return records

    def _memory_record(self, piece: RecordedMemory, row: Row) -> Record:
        facts = self.sites(row.site)
        model = piece.model
        if model is None:
            storages: tuple[tuple[int, int], ...] = ((self._number_of(piece.identity), piece.nbytes),)
        else:
            storages = tuple((self._number_of(identity), nbytes) for identity, nbytes in model.storages)
        record = DRAFT_OF_RECORD(
            kind=piece.kind if model is None else model.name,
            shape=None,
            dtype=None,
            nbytes=piece.nbytes,
            used_nbytes=piece.nbytes,
            storages=storages,
            site=facts.site,
            disposal=None,
            scope=row.scope,
            age_s=self._now_s - row.at_s,
            generation=self._closings - row.closings,
            state="alive",
            frames=facts.frames,
            device=piece.device,
            op=facts.op,
        )
        record.__class__ = Record
        return record

    def _number_of(self, identity: Hashable) -> int:
        """Return the number of a storage, which is given the next one where it has none."""
        return self.numbers.setdefault(identity, len(self.numbers))


def layout_of(entry: Entry) -> Layout | None:
    """Return the shape, dtype and own bytes of a resource, or None if its kind has none."""
    resource = entry()
    return None if resource is None else entry.kind.layout(resource)


def _disposal_of(entry: Entry) -> Disposal | None:
    disposed = DISPOSALS.get(entry)
    return None if disposed is None else disposed[0]


def _belongs_to_composite(entry: Entry) -> bool:
    unit = entry.unit
    return unit is not None and (LIVE.get(unit.key) is unit or DEAD.get(unit.key) is unit) and unit() is not None
