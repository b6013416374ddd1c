"""A snapshot of the resources that are there: what lives, and what was disposed and is still referenced."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, final

from .._entry import DEAD, LIVE, Entry
from .._parts import device_of_entry, storages_of
from ._classify import Inventory, report_of
from ._collection import collection_paused
from ._comparison import Comparison, compare, nbytes_of
from ._places import files_of, is_at
from ._records import Record
from ._report import Report
from ._sightings import Birth, Disposal, Seen
from ._site import Mark, Site, site_of
from .reporters._notebook import COLUMNS, cells_of, html_table

if TYPE_CHECKING:
    from .._kinds import Layout

__all__ = ["Snapshot", "layout_of", "survey"]


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """The resources that were there at one moment. It refers to them weakly and keeps nothing alive.

    Iterating over it gives its records; ``str()`` a table of them.

    Attributes
    ----------
    records : tuple of Record
        One for each resource, in the order of birth; a composite stands for its members.
    """

    records: tuple[Record, ...]
    # An entry for a resource, and for memory that no resource stands for what was seen of it.
    _entries: tuple[Entry | Seen, ...] = field(repr=False, compare=False)
    # For what was disposed, which closing of a scope did it; None where no detector saw it.
    _closings: tuple[int | None, ...] = field(repr=False, compare=False)
    _births: tuple[Birth | None, ...] = field(repr=False, compare=False)
    # The number of the last birth before the detector was opened.
    _after: int = field(default=0, repr=False, compare=False)
    # Whether it is all that a detector knows.
    _watched: bool = field(default=False, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """The bytes of all storages, each counted once."""
        return nbytes_of(self.records)

    def compare_to(self, old: Snapshot) -> Comparison:
        """What changed since an older snapshot: the resources that are new or gone, and the sites that grew.

        Examples
        --------
        >>> import disposescope as ds
        >>> history = []
        >>> with ds.LeakDetector() as detector:
        ...     before = detector.take_snapshot()
        ...     for step in range(3):
        ...         history.append(ds.zeros(1000, dtype="float32"))
        ...     change = detector.take_snapshot().compare_to(before)
        >>> len(change.new), len(change.gone), [(growth.count, growth.nbytes) for growth in change.grown]
        (3, 0, [(3, 12000)])
        """
        return compare(self.records, self._entries, old.records, old._entries)

    def since(self, old: Snapshot) -> Snapshot:
        """The part of this snapshot that was not there in an older one."""
        before = set(old._entries)
        return self._where(entry not in before for entry in self._entries)

    def alive(self) -> Snapshot:
        """The part of this snapshot that is alive, without what was disposed."""
        return self._where(record.state == "alive" for record in self.records)

    def filter(self, *, site: str | None = None, kind: str | None = None, module: str | None = None) -> Snapshot:
        """The part of this snapshot that is of some lines, of a kind, or of a module.

        Parameters
        ----------
        site : str, optional
            A pattern for ``file:line``, ``file`` or the last part of the file's path, as a shell takes it:
            ``"train.py:31"``, ``"*/models/*"``.
        kind : str, optional
            A pattern for the name of the kind: ``"torch.*"``.
        module : str, optional
            The name of a module or package that the user has imported, the line being in its files:
            ``"package.train"``.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.LeakDetector() as detector:
        ...     weights, total = ds.zeros(3), ds.ones(2)
        ...     len(detector.take_snapshot().filter(kind="Tens*")), len(detector.take_snapshot().filter(kind="torch.*"))
        (2, 0)
        """
        inside = None if module is None else files_of(module)
        return self._where(
            (site is None or is_at(record.site, site))
            and (kind is None or fnmatchcase(record.kind, kind))
            and (inside is None or (record.site is not None and inside(record.site.file)))
            for record in self.records
        )

    def largest_first(self) -> Snapshot:
        """The same snapshot, ordered by bytes."""
        order = sorted(range(len(self.records)), key=lambda index: -self.records[index].nbytes)
        return self._picked(order)

    def report(self, *, time_limit_s: float = 5.0, object_limit: int = 2_000_000, of_program: bool = False) -> Report:
        """The same by site and reason, worst first, each with its holders.

        Parameters
        ----------
        time_limit_s : float, default 5.0
            How long holders are searched for. What is not found by then is reported without one.
        object_limit : int, default 2_000_000
            How many objects are looked at.
        of_program : bool, default False
            Whether this is about a whole program: what its variables lead to is there by right then, and is told as
            ``report.kept`` instead of ``report.leaks``, unless it shows signs of a leak.

        Returns
        -------
        Report
            ``str(report)`` is its text.
        """
        found = Inventory(self.records, self._entries, self._births, self._closings, self._after, self._watched)
        with collection_paused():
            return report_of(found, time_limit_s=time_limit_s, object_limit=object_limit, of_program=of_program)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __str__(self) -> str:
        rows = [COLUMNS, *map(cells_of, self.records)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]:<{widths[3]}}  {row[4]}"
            for row in rows
        )

    def _repr_html_(self) -> str:
        return html_table(self)

    def _where(self, chosen: Iterable[bool]) -> Snapshot:
        return self._picked([index for index, choose in enumerate(chosen) if choose])

    def _picked(self, order: list[int]) -> Snapshot:
        return Snapshot(
            tuple(self.records[index] for index in order),
            tuple(self._entries[index] for index in order),
            tuple(self._closings[index] for index in order),
            tuple(self._births[index] for index in order),
            self._after,
        )


def survey(
    found: Iterable[tuple[Entry, Birth | None, Disposal | None]],
    closings: int,
    memory: Callable[[Container[Hashable]], Iterable[Seen]] | None = None,
    after: int = 0,
    watched: bool = False,
) -> Snapshot:
    """Take the snapshot of those of some entries whose resources are there now; members of composites are left out.

    Parameters
    ----------
    found : iterable of (Entry, Birth or None, Disposal or None)
        The entries, and what is known of each.
    closings : int
        How many scopes had been closed until now, by the count that the births were made with.
    memory : callable, optional
        Gives the memory that is there, without that of the identities which it is called with: what a living resource
        among the entries stands for is told with that one.
    after : int
        The number of the last birth before the detector was opened.
    watched : bool
        Whether it is all that a detector knows.
    """
    now = time.monotonic()
    # Identities of storages are exchanged for numbers at once: one of them may be the storage itself.
    numbers: dict[Hashable, int] = {}
    sites: dict[Mark, Site | None] = {}
    records: list[Record] = []
    entries: list[Entry | Seen] = []
    when: list[int | None] = []
    births: list[Birth | None] = []
    frames: dict[tuple[Mark, ...], tuple[Site, ...]] = {}
    for entry, birth, disposal in found:
        alive = LIVE.get(entry.key) is entry
        if not alive and DEAD.get(entry.key) is not entry:
            continue
        if _belongs_to_composite(entry):
            continue
        layout: Layout | None = None if disposal is None else disposal.layout
        resource = entry()
        if resource is None:
            continue
        kind = entry.kind
        storages: dict[Hashable, int]
        if not alive:
            storages = {}
        elif entry.members:
            storages = {}
            storages_of(entry, storages)
        else:
            storages = dict(kind.storages(resource))
        if alive and kind.layout is not None:
            layout = kind.layout(resource)
        del resource
        nbytes = sum(storages.values())
        owner = entry.owner
        lines = () if birth is None else _lines(birth.places, frames, sites)
        records.append(
            Record(
                kind=kind.name,
                shape=None if layout is None else layout[0],
                dtype=None if layout is None else layout[1],
                nbytes=nbytes,
                used_nbytes=nbytes if layout is None or not alive else layout[2],
                storages=tuple((numbers.setdefault(key, len(numbers)), size) for key, size in storages.items()),
                site=lines[0] if lines else None,
                disposal=None if disposal is None else _site(disposal.mark, sites),
                scope=birth.scope if birth is not None else None if owner is None else owner.name or "",
                age_s=None if birth is None else now - birth.at_s,
                generation=None if birth is None else closings - birth.closings,
                state="alive" if alive else "disposed",
                frames=lines,
                device=None if not alive else device_of_entry(entry) if birth is None else birth.device,
                op=None if birth is None else birth.op,
            )
        )
        entries.append(entry)
        births.append(birth)
        when.append(None if disposal is None else disposal.closings)
    for piece in () if memory is None else memory(numbers):
        if piece() is None:
            continue
        birth = piece.birth
        lines = _lines(birth.places, frames, sites)
        records.append(
            Record(
                kind=piece.kind,
                shape=None,
                dtype=None,
                nbytes=piece.nbytes,
                used_nbytes=piece.nbytes,
                storages=((numbers.setdefault(piece.identity, len(numbers)), piece.nbytes),),
                site=lines[0] if lines else None,
                disposal=None,
                scope=birth.scope,
                age_s=now - birth.at_s,
                generation=closings - birth.closings,
                state="alive",
                frames=lines,
                device=piece.device,
                op=birth.op,
            )
        )
        entries.append(piece)
        births.append(birth)
        when.append(None)
    return Snapshot(tuple(records), tuple(entries), tuple(when), tuple(births), after, watched)


def layout_of(entry: Entry) -> Layout | None:
    """Shape, dtype and own bytes of a resource, where its kind tells."""
    layout = entry.kind.layout
    if layout is None:
        return None
    resource = entry()
    return None if resource is None else layout(resource)


def _belongs_to_composite(entry: Entry) -> bool:
    unit = entry.unit
    return unit is not None and (LIVE.get(unit.key) is unit or DEAD.get(unit.key) is unit) and unit() is not None


def _lines(
    places: tuple[Mark, ...], known: dict[tuple[Mark, ...], tuple[Site, ...]], sites: dict[Mark, Site | None]
) -> tuple[Site, ...]:
    lines = known.get(places)
    if lines is None:
        lines = known[places] = tuple(site for place in places if (site := _site(place, sites)) is not None)
    return lines


def _site(mark: Mark | None, sites: dict[Mark, Site | None]) -> Site | None:
    if mark is None:
        return None
    try:
        return sites[mark]
    except KeyError:
        site = sites[mark] = site_of(mark)
        return site
