"""A snapshot of the resources of a process: alive, or disposed and still referenced."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import final

from ...scopes.base.sites import Site, shown
from ...scopes.identity import Entry
from ..births.lines import Beginning
from ..births.log import LOG, BirthRows, RecordedMemory, Row, Sites
from ..births.record_builder import RecordBuilder
from ..holders.references import is_module, namespace_of
from ..report.records import COLUMNS, Comparison, Record, cells_of, compare, html_table, nbytes_of
from ..report.report import OBJECT_LIMIT, Report
from ..verdicts.classify import Census, report_of
from .collection import collection_paused

__all__ = [
    "Snapshot",
    "survey",
]


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """The resources that were alive, or disposed under a live reference, at one moment.

    It refers to them weakly and keeps nothing alive.

    Iterating over it gives its records; ``str()`` a table of them.

    Attributes
    ----------
    records : tuple of Record
        One for each resource, in the order of birth; a composite stands for its members.
    """

    records: tuple[Record, ...]
    # The entry of each resource, or the recorded memory that no resource stands for.
    _entries: tuple[Entry | RecordedMemory, ...] = field(repr=False, compare=False)
    # For disposed resources whose disposal was recorded, how many scopes had been closed then.
    _closings: dict[Entry, int] = field(repr=False, compare=False)
    # The rows of the births in the log, None where a birth was not recorded; the facts about sites.
    _rows: tuple[Row | None, ...] = field(repr=False, compare=False)
    _sites: Sites = field(repr=False, compare=False)
    # The counts of the log when the detector was opened.
    _beginning: Beginning = field(default_factory=Beginning, repr=False, compare=False)
    # Whether the snapshot has everything that was born under a detector.
    _watched: bool = field(default=False, repr=False, compare=False)
    # The number of the last birth when it was taken: other threads go on.
    _last: int = field(default=0, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all storages, each counted once."""
        return nbytes_of(self.records)

    def compare_to(self, old: Snapshot) -> Comparison:
        """Return what changed since an older snapshot: new and gone resources, sites that grew.

        Examples
        --------
        >>> import disposescope as ds
        >>> history = []
        >>> with ds.LeakDetector() as detector:
        ...     before = detector.take_snapshot()
        ...     for step in range(3):
        ...         history.append(ds.zeros(1000, dtype="float32"))
        ...     change = detector.take_snapshot().compare_to(before)
        >>> grown = [(growth.count, growth.nbytes) for growth in change.grown]
        >>> len(change.new), len(change.gone), grown
        (3, 0, [(3, 12000)])
        """
        return compare(self.records, self._entries, old.records, old._entries)

    def since(self, old: Snapshot) -> Snapshot:
        """Return the part of this snapshot that is not in an older one."""
        before = set(old._entries)
        return self._where(entry not in before for entry in self._entries)

    def alive(self) -> Snapshot:
        """Return the part of this snapshot that is alive, without disposed resources."""
        return self._where(record.state == "alive" for record in self.records)

    def filter(self, *, site: str | None = None, kind: str | None = None, module: str | None = None) -> Snapshot:
        """Return the part of this snapshot that is of some lines, of a kind, or of a module.

        Parameters
        ----------
        site : str, optional
            A pattern for ``file:line``, ``file`` or the last part of the file's path, with
            wildcards as in a shell: ``"train.py:31"``, ``"*/models/*"``.
        kind : str, optional
            A pattern for the name of the kind: ``"torch.*"``.
        module : str, optional
            The name of an imported module or package that has the line in its files:
            ``"package.train"``.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.LeakDetector() as detector:
        ...     weights, total = ds.zeros(3), ds.ones(2)
        ...     snapshot = detector.take_snapshot()
        ...     len(snapshot.filter(kind="Tens*")), len(snapshot.filter(kind="torch.*"))
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
        """Return the same snapshot, ordered by bytes."""
        order = sorted(range(len(self.records)), key=lambda index: -self.records[index].nbytes)
        return self._picked(order)

    def report(
        self,
        *,
        object_limit: int = OBJECT_LIMIT,
        of_program: bool = False,
        died: bool = False,
        goes_on: bool = False,
        is_look: bool = False,
    ) -> Report:
        """Return the leaks of the snapshot by site and reason, worst first, with their holders.

        Parameters
        ----------
        object_limit : int, default 4_000_000
            How many objects the search for holders reaches at most; it looks at ten times as many
            references. A resource that is not found by then is reported without a holder, and is
            undecided. No clock is read: a busy machine gives the same report.
        of_program : bool, default False
            Whether this is about a whole program. Then a resource that variables lead to is in
            ``report.kept`` instead of ``report.leaks``, unless it shows signs of a leak.
        died : bool, default False
            Whether an exception has ended the program. Then a resource that only ``sys.last_exc``
            holds is no leak.
        goes_on : bool, default False
            Whether the program runs on. Then a few large results may become more, and are
            undecided.
        is_look : bool, default False
            Whether what would take most of the time is left out: `Report.retainers` are empty if
            nothing grew whose holder is known, and one or two results of a line that the program's
            own variables do not lead to have no holder.

        Returns
        -------
        Report
            ``str(report)`` is its text.
        """
        found = Census(
            self.records,
            self._entries,
            self._rows,
            self._sites,
            self._closings,
            self._beginning,
            self._watched,
            self._last,
        )
        with collection_paused():
            return report_of(
                found,
                object_limit=object_limit,
                of_program=of_program,
                died=died,
                goes_on=goes_on,
                is_look=is_look,
            )

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
        return html_table(COLUMNS, map(cells_of, self.records), len(self.records))

    def _where(self, chosen: Iterable[bool]) -> Snapshot:
        return self._picked([index for index, choose in enumerate(chosen) if choose])

    def _picked(self, order: list[int]) -> Snapshot:
        return Snapshot(
            tuple(self.records[index] for index in order),
            tuple(self._entries[index] for index in order),
            self._closings,
            tuple(self._rows[index] for index in order),
            self._sites,
            self._beginning,
            _last=self._last,
        )


def survey(
    known: Sequence[tuple[list[Entry], Sequence[Row | None]]],
    closings: int,
    memory: Callable[[Container[Hashable]], Iterable[tuple[list[RecordedMemory], BirthRows]]] | None = None,
    beginning: Beginning | None = None,
    watched: bool = False,
    until: int | None = None,
) -> Snapshot:
    """Return a snapshot of those entries whose resources are there, and of memory.

    Members of composites are left out.

    Parameters
    ----------
    known : sequence of (list of Entry, sequence of (Row or None))
        The entries and the rows of their births, in several parts. None for a birth that was not
        recorded.
    closings : int
        How many scopes the log had seen closed until now.
    memory : callable, optional
        Called with the identities of memory that living resources among the entries stand for,
        returns all other memory that is there.
    beginning : Beginning, optional
        The counts of the log when the detector was opened; by default zeros.
    watched : bool
        Whether this is everything that was born under a detector.
    until : int, optional
        The number of the last birth that counts; by default that of the last birth of all.
    """
    last: int = LOG.counts()[0] if until is None else until
    record_builder = RecordBuilder(closings)
    records: list[Record] = []
    subjects: list[Entry | RecordedMemory] = []
    births: list[Row | None] = []
    for entries, rows in known:
        new_records, recorded_entries, recorded_rows = record_builder.build_records(entries, rows)
        records += new_records
        subjects += recorded_entries
        births += recorded_rows
    numbers = [0 if row is None else row.number for row in births]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    records = [records[index] for index in order]
    subjects = [subjects[index] for index in order]
    births = [births[index] for index in order]
    for pieces, memory_rows in () if memory is None else memory(record_builder.numbers):
        records += record_builder.build_memory_records(pieces, memory_rows)
        subjects += pieces
        births += memory_rows
    return Snapshot(
        tuple(records),
        tuple(subjects),
        record_builder.disposals,
        tuple(births),
        record_builder.sites,
        Beginning() if beginning is None else beginning,
        watched,
        max([last, *(row.number for row in births if row is not None)]),
    )


# Match sites with a file and perhaps a line, or with a module.


def is_at(site: Site | None, pattern: str) -> bool:
    """Return whether a site matches a pattern.

    A pattern is ``file`` or ``file:line``. The file is its whole path, its path as reports show it,
    or its name.
    """
    if site is None:
        return False
    names = {site.file, shown(site.file), os.path.basename(site.file)}
    return any(fnmatchcase(name, pattern) or fnmatchcase(f"{name}:{site.line}", pattern) for name in names)


def files_of(module: str) -> Callable[[str], bool]:
    """Return a function that tells whether a file belongs to a module, or to a package.

    Raises
    ------
    ValueError
        No such module has been imported, or it has no file.
    """
    found = sys.modules.get(module)
    namespace = namespace_of(found) if found is not None and is_module(found) else {}
    file = namespace.get("__file__")
    if type(file) is not str:
        raise ValueError(f"no module {module!r} with a file has been imported")
    path = os.path.abspath(file)
    if "__path__" not in namespace:
        return lambda other: os.path.abspath(other) == path
    folder = os.path.join(os.path.dirname(path), "")
    return lambda other: os.path.abspath(other).startswith(folder)
