"""The births of one line among those of a snapshot, and the totals of a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from ...scopes.sites import Site, site_of
from ..report.live import LiveSite
from .log import LOG, NUMBER, SCOPE, SITE, WEIGHT, Rows, Sites

__all__ = [
    "Births",
    "with_totals",
]

# The births of one line, among those of a snapshot.


@final
class Births:
    """The births of what is there of one line.

    Parameters
    ----------
    rows : Rows
        The births of a snapshot.
    places : list of int
        Which of them are meant, in the order of birth.
    sites : Sites
        What is known of the lines.
    """

    __slots__ = ("_places", "_rows", "_sites", "site_number")

    def __init__(self, rows: Rows, places: list[int], sites: Sites) -> None:
        self._rows = rows
        self._places = places
        self._sites = sites
        first = rows.column(SITE, places[:1])
        # None where no detector saw them.
        self.site_number: int | None = first[0] if first else None

    @property
    def made(self) -> int:
        """How many the line had made when the snapshot was taken."""
        return 0 if self.site_number is None else self._sites(self.site_number).made

    @property
    def is_known_still(self) -> bool:
        """Whether the log has not forgotten them since."""
        first = self._rows.column(NUMBER, self._places[:1])
        return bool(first) and first[0] > LOG.cleared_at()

    def numbers(self, after: int) -> list[int]:
        """Their numbers from a birth on, in order."""
        numbers: list[int] = self._rows.column(NUMBER, self._places)
        return [number - after for number in numbers] if after else numbers

    def scopes(self) -> set[str | None]:
        """The names of their scopes."""
        return set(self._rows.column(SCOPE, self._places))

    def weights(self) -> list[float]:
        """How many births each stands for; empty where each stands for itself."""
        weights: list[float] = self._rows.column(WEIGHT, self._places)
        return weights if any(weight != 1.0 for weight in weights) else []


# What a line made in all, and the most that it had at once, beside what lives of it.


def with_totals(sites: Iterable[LiveSite]) -> tuple[LiveSite, ...]:
    """The sites with their births and their peaks, as the log counted them."""
    totals: dict[tuple[Site | None, str, str], tuple[int, int]] = {}
    for number in range(LOG.site_count()):
        kind, device, _, places, births, _, _, peak_nbytes = LOG.site(number)
        key = (site_of(places[0] if places else None), kind, device)
        before = totals.get(key, (0, 0))
        totals[key] = before[0] + births, before[1] + peak_nbytes
    found: list[LiveSite] = []
    for site in sites:
        births, peak_nbytes = totals.get((site.site, site.kind, site.device), (0, 0))
        found.append(replace(site, births=max(site.births, births), peak_nbytes=max(site.peak_nbytes, peak_nbytes)))
    return tuple(found)
