"""The births of one line in a snapshot, and the totals of a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from ...scopes.base.process import PATCHES, Patch
from ...scopes.base.sites import Mark, Site
from ..report.live import LiveSite
from .log import LOG, Row, Sites, innermost_line

__all__ = [
    "Beginning",
    "Births",
    "with_totals",
]


@final
@dataclass(frozen=True, slots=True)
class Beginning:
    """The counts of the log when a detector was opened, to be taken off later counts.

    The log may have recorded births for another detector before.

    Attributes
    ----------
    after : int
        The number of the last birth before.
    passes : mapping of str to int
        How many passes of each name there were.
    made : mapping of int to int
        How many results each site had made: see `SiteRow.made`.
    opening : int
        How often births had begun to be recorded.
    unseen : mapping of Patch to int
        How often `Patches.note_unseen` had been called for each patch.
    """

    after: int = 0
    passes: Mapping[str, int] = field(default_factory=dict[str, int])
    made: Mapping[int, int] = field(default_factory=dict[int, int])
    opening: int = field(default_factory=lambda: LOG.openings())
    unseen: Mapping[Patch, int] = field(default_factory=lambda: PATCHES.times_unseen())

    @classmethod
    def now(cls, births: int) -> Beginning:
        """Return the counts of the log now; `births` is the number of its last birth."""
        if not births:
            return cls(0, LOG.passes())
        return cls(births, LOG.passes(), {number: LOG.site(number).made for number in range(LOG.site_count())})

    @property
    def has_series(self) -> bool:
        """Return whether the log still has its series since the beginning.

        It forgets them when a detector is opened while no other is open.
        """
        return self.opening == LOG.openings()


@final
class Births:
    """The births of one line whose results are in a snapshot.

    Parameters
    ----------
    rows : iterable of (Row or None)
        The rows of the births in the log, in the order of birth; None for a birth that was not
        recorded.
    sites : Sites
        The facts about the sites in the log.
    beginning : Beginning
        What the log had when the detector was opened.

    Attributes
    ----------
    site_number : int or None
        The number of the line in the log; None where no birth was recorded.
    count : float
        How many births these are; an estimate where births are sampled.
    """

    __slots__ = ("_beginning", "_rows", "_sites", "count", "site_number")

    def __init__(self, rows: Iterable[Row | None], sites: Sites, beginning: Beginning) -> None:
        self._beginning = beginning
        self._rows = [row for row in rows if row is not None]
        self._sites = sites
        self.site_number: int | None = self._rows[0].site if self._rows else None
        self.count = sum((row.weight for row in self._rows), 0.0)

    @property
    def made(self) -> int:
        """Return how many results the line had made by the time that the snapshot was taken."""
        before = self._beginning.made
        made = sum(self._sites(number).made - before.get(number, 0) for number in self._numbers_of_sites())
        # Scalars that were counted before may have died since.
        return max(round(self.count), made)

    @property
    def function(self) -> str:
        """Return the name of the function of the line, or ``""``."""
        site = None if self.site_number is None else self._sites(self.site_number).site
        return "" if site is None else site.function

    @property
    def mark(self) -> Mark | None:
        """Return code and instruction of the line; None where they are not known any more."""
        places = LOG.site(self.site_number).places if self.site_number is not None and self.is_known_still else ()
        return places[0] if places else None

    @property
    def live(self) -> float:
        """Return how many resources of the line were alive when the snapshot was taken."""
        return sum((self._sites(number).live for number in self._numbers_of_sites()), 0.0)

    @property
    def is_known_still(self) -> bool:
        """Return whether the log still has these births."""
        return bool(self._rows) and self._rows[0].number > LOG.cleared_at()

    @property
    def has_series(self) -> bool:
        """Return whether the log still has the series of the line since the detector was opened."""
        return self.is_known_still and self._beginning.has_series

    @property
    def kept(self) -> int | None:
        """Return how many births of the line a sample kept; None where every birth was kept."""
        return len(self._rows) if self.weights() else None

    def numbers(self) -> list[int]:
        """Return the numbers of the births, in order, counted from the opening of the detector."""
        return [row.number - self._beginning.after for row in self._rows]

    @property
    def oldest(self) -> int:
        """Return the number of the first of the births in the log, 0 if none was recorded."""
        return min((row.number for row in self._rows), default=0)

    @property
    def are_of_several_sites(self) -> bool:
        """Return whether the log has several numbers for the line."""
        return len(self._numbers_of_sites()) > 1

    def _numbers_of_sites(self) -> set[int]:
        # Code that is compiled anew each time, such as a template's, makes a new site each time.
        return {row.site for row in self._rows}

    def scopes(self) -> set[str | None]:
        """Return the names of the scopes of the births."""
        return {row.scope for row in self._rows}

    def weights(self) -> list[float]:
        """Return how many births each birth stands for; empty if each stands only for itself."""
        weights = [row.weight for row in self._rows]
        return weights if any(weight != 1.0 for weight in weights) else []


def with_totals(sites: Iterable[LiveSite], beginning: Beginning) -> tuple[LiveSite, ...]:
    """Return the sites with the births and peaks that the log counted since a beginning.

    Several sites of the log are one line where the same code was compiled several times.
    """
    totals: dict[tuple[Site | None, str, str], tuple[int, int]] = {}
    for number in range(LOG.site_count()):
        row = LOG.site(number)
        key = (innermost_line(row), row.kind, row.device)
        births, peak_nbytes = totals.get(key, (0, 0))
        earlier = beginning.made.get(number, 0)
        # The peak of a line that had births before the beginning may be older than that.
        totals[key] = births + row.made - earlier, peak_nbytes + (0 if earlier else row.peak_nbytes)
    found: list[LiveSite] = []
    for site in sites:
        births, peak_nbytes = totals.get((site.site, site.kind, site.device), (0, 0))
        found.append(replace(site, births=max(site.births, births), peak_nbytes=max(site.peak_nbytes, peak_nbytes)))
    return tuple(found)
