"""The live resources of a snapshot by line, whether they are leaks or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ...scopes.base.sites import Site
from .records import Record, nbytes_of

__all__ = [
    "LiveSite",
    "estimated",
    "live_sites",
]


@final
@dataclass(frozen=True, slots=True)
class LiveSite:
    """The live resources of one line and one kind.

    Attributes
    ----------
    site : Site or None
        The line; None where no detector was watching.
    frames : tuple of Site
        That line and the lines that called it, innermost first.
    kind : str
        The kind of tensor.
    device : str
        The name of their device.
    count : int
        How many are live.
    nbytes : int
        The bytes that they pin, each storage once.
    peak_nbytes : int
        The most bytes that were live at once; at least `nbytes`.
    births : int
        How many were born; at least `count`. Scalars on the way to larger results are left out.
    """

    site: Site | None
    frames: tuple[Site, ...]
    kind: str
    device: str
    count: int
    nbytes: int
    peak_nbytes: int
    births: int


def live_sites(records: Sequence[Record], weights: Sequence[float] = ()) -> tuple[LiveSite, ...]:
    """Return the live resources of a snapshot by line and kind, the most bytes first.

    Parameters
    ----------
    records : sequence of Record
        The records of the snapshot.
    weights : sequence of float, optional
        How many births each record of a sample stands for: the rows are estimates then.
    """
    # Group by the ``id`` of the lines first: there are few, and comparing them is slow.
    by_identity: dict[tuple[int, str, str | None], list[int]] = {}
    for index, record in enumerate(records):
        if record.state == "alive":
            key = (id(record.site), record.kind, record.device)
            indices = by_identity.get(key)
            if indices is None:
                by_identity[key] = [index]
            else:
                indices.append(index)
    groups: dict[tuple[Site | None, str, str], list[int]] = {}
    for indices in by_identity.values():
        first = records[indices[0]]
        groups.setdefault((first.site, first.kind, first.device or ""), []).extend(indices)
    found: list[LiveSite] = []
    for (site, kind, device), indices in groups.items():
        count, nbytes = estimated(
            [records[index] for index in indices], [weights[index] for index in indices if weights]
        )
        found.append(LiveSite(site, records[indices[0]].frames, kind, device, count, nbytes, nbytes, count))
    found.sort(key=lambda row: (-row.nbytes, -row.count, str(row.site), row.kind))
    return tuple(found)


def estimated(records: Sequence[Record], weights: Sequence[float]) -> tuple[int, int]:
    """Return the number and the bytes of some records; estimates if weights are not 1."""
    if all(weight == 1.0 for weight in weights):
        return len(records), nbytes_of(records)
    sizes = (record.nbytes * weight for record, weight in zip(records, weights, strict=True))
    return round(sum(weights)), round(sum(sizes))
