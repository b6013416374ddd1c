"""What changed between two snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from ._records import Record
from ._site import Site

if TYPE_CHECKING:
    from .._entry import Entry
    from ._sightings import Seen

__all__ = ["Comparison", "Growth", "compare", "nbytes_of"]


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """How much more a site has than it had: a number of resources, and the bytes of their storages, each once."""

    site: Site | None
    count: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.site or 'unknown site'}: {self.count:+d}, {self.nbytes:+d} bytes"


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed from an older snapshot to a newer one.

    Attributes
    ----------
    new : tuple of Record
        What is there now and was not there then, in the order of birth.
    gone : tuple of Record
        What was there then and is not any more, as it was then.
    grown : tuple of Growth
        The sites that have more resources or more bytes than they had, the most bytes first.
    """

    new: tuple[Record, ...]
    gone: tuple[Record, ...]
    grown: tuple[Growth, ...]


def compare(
    records: tuple[Record, ...],
    entries: tuple[Entry | Seen, ...],
    old_records: tuple[Record, ...],
    old_entries: tuple[Entry | Seen, ...],
) -> Comparison:
    """Compare the records of two snapshots; entries tell which records are of the same resource."""
    before, now = set(old_entries), set(entries)
    new = tuple(record for record, entry in zip(records, entries, strict=True) if entry not in before)
    gone = tuple(record for record, entry in zip(old_records, old_entries, strict=True) if entry not in now)
    old_sites, sites = _by_site(old_records), _by_site(records)
    grown: list[Growth] = []
    for site, those in sites.items():
        past = old_sites.get(site, [])
        growth = Growth(site, len(those) - len(past), nbytes_of(those) - nbytes_of(past))
        if growth.count > 0 or growth.nbytes > 0:
            grown.append(growth)
    grown.sort(key=lambda growth: (-growth.nbytes, -growth.count, str(growth.site)))
    return Comparison(new, gone, tuple(grown))


def nbytes_of(records: Iterable[Record]) -> int:
    """The bytes of the storages of some records of one snapshot, each storage once."""
    return sum({number: nbytes for record in records for number, nbytes in record.storages}.values())


def _by_site(records: Iterable[Record]) -> dict[Site | None, list[Record]]:
    sites: dict[Site | None, list[Record]] = {}
    for record in records:
        sites.setdefault(record.site, []).append(record)
    return sites
