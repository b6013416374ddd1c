"""The births of one line among those of a snapshot, and the totals of a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from ...scopes.sites import Site, site_of
from ..report.live import LiveSite
from .log import LOG, Row, Sites

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
    rows : iterable of (Row or None)
        What the log knew of them, in the order of birth; None where nobody saw one.
    sites : Sites
        What is known of the lines.
    """

    __slots__ = ("_rows", "_sites", "site_number")

    def __init__(self, rows: Iterable[Row | None], sites: Sites) -> None:
        self._rows = [row for row in rows if row is not None]
        self._sites = sites
        # None where no detector saw them.
        self.site_number: int | None = self._rows[0].site if self._rows else None

    @property
    def made(self) -> int:
        """How many the line had made when the snapshot was taken."""
        return 0 if self.site_number is None else self._sites(self.site_number).made

    @property
    def is_known_still(self) -> bool:
        """Whether the log has not forgotten them since."""
        return bool(self._rows) and self._rows[0].number > LOG.cleared_at()

    def numbers(self, after: int) -> list[int]:
        """Return their numbers, counted from a birth on, in order."""
        return [row.number - after for row in self._rows]

    def scopes(self) -> set[str | None]:
        """Return the names of their scopes."""
        return {row.scope for row in self._rows}

    def weights(self) -> list[float]:
        """Return how many births each stands for; empty where each stands for itself."""
        weights = [row.weight for row in self._rows]
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
