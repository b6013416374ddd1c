"""What is live, by line: leak or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from ...scopes.sites import Site
from .records import Record, nbytes_of

__all__ = [
    "LiveSite",
    "live_sites",
]


@final
@dataclass(frozen=True, slots=True)
class LiveSite:
    """What is live of one line and one kind.

    Attributes
    ----------
    site : Site or None
        The line; None where no detector was watching.
    frames : tuple of Site
        That line and those that led to it, innermost first.
    kind : str
        The kind of tensor.
    device : str
        Where they are.
    count : int
        How many are live.
    nbytes : int
        The bytes that they pin, each storage once.
    peak_nbytes : int
        The most bytes that were live at once; at least `nbytes`.
    births : int
        How many were born; at least `count`.
    """

    site: Site | None
    frames: tuple[Site, ...]
    kind: str
    device: str
    count: int
    nbytes: int
    peak_nbytes: int
    births: int


def live_sites(records: Iterable[Record]) -> tuple[LiveSite, ...]:
    """What is live among some records of one snapshot, the most bytes first."""
    # The lines by their identity first: there are few of them, and comparing them takes time.
    by_identity: dict[tuple[int, str, str | None], list[Record]] = {}
    for record in records:
        if record.state == "alive":
            key = (id(record.site), record.kind, record.device)
            those = by_identity.get(key)
            if those is None:
                by_identity[key] = [record]
            else:
                those.append(record)
    groups: dict[tuple[Site | None, str, str], list[Record]] = {}
    for those in by_identity.values():
        first = those[0]
        groups.setdefault((first.site, first.kind, first.device or ""), []).extend(those)
    found: list[LiveSite] = []
    for (site, kind, device), those in groups.items():
        nbytes = nbytes_of(those)
        found.append(LiveSite(site, those[0].frames, kind, device, len(those), nbytes, nbytes, len(those)))
    found.sort(key=lambda row: (-row.nbytes, -row.count, str(row.site), row.kind))
    return tuple(found)
