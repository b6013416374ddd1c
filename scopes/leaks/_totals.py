"""What a line made in all, and the most that it had at once, beside what lives of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ._live import LiveSite
from ._log import LOG
from ._site import Site, site_of

__all__ = ["with_totals"]


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
