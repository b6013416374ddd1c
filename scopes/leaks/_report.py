"""A report: what is there, grouped by site, worst first, each group with one holder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from ._comparison import nbytes_of
from ._holders import find_holders
from ._leftovers import leftovers_among
from ._records import Record, State
from ._site import Site
from .reporters._text import text_of

if TYPE_CHECKING:
    from .._entries import Entry

__all__ = ["Group", "Report", "report_of"]


@final
@dataclass(frozen=True, slots=True)
class Group:
    """The resources from one site that are in the same state.

    Attributes
    ----------
    site : Site or None
        Where they were born.
    state : {"alive", "disposed"}
        Whether they are alive, or disposed under a live reference.
    holder : str
        What holds the oldest of them, as code.
    records : tuple of Record
        The resources, oldest first.
    """

    site: Site | None
    state: State
    holder: str
    records: tuple[Record, ...]

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.records)

    @property
    def nbytes(self) -> int:
        """The bytes of the storages that they pin, each storage once."""
        return nbytes_of(self.records)

    @property
    def used_nbytes(self) -> int:
        """The bytes of their own elements; fewer than `nbytes` where they are views."""
        return sum(record.used_nbytes for record in self.records)

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """The names of the scopes that they were born in, each once; see `Record.scope`."""
        return tuple(dict.fromkeys(record.scope for record in self.records))


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Leaks by site. ``str()`` of it is its text.

    Attributes
    ----------
    groups : tuple of Group
        What is alive, and what was disposed while something else than a left-over variable still references it; the
        most bytes first.
    leftovers : tuple of Group
        Disposed resources that only a left-over variable names. They are no leaks.
    """

    groups: tuple[Group, ...]
    leftovers: tuple[Group, ...] = ()

    @property
    def count(self) -> int:
        """How many resources leaked."""
        return sum(group.count for group in self.groups)

    @property
    def nbytes(self) -> int:
        """The bytes that they pin, each storage once."""
        return nbytes_of(record for group in self.groups for record in group.records)

    def __str__(self) -> str:
        return text_of(self)


def report_of(
    records: tuple[Record, ...],
    entries: tuple[Entry, ...],
    closings: tuple[int | None, ...],
    *,
    time_limit_s: float,
    object_limit: int,
) -> Report:
    """Group what a snapshot found, and find a holder of each group."""
    disposed = [index for index, record in enumerate(records) if record.state == "disposed"]
    left = leftovers_among([entries[index] for index in disposed], [closings[index] for index in disposed])
    groups: dict[tuple[Site | None, State, bool], list[int]] = {}
    for index, record in enumerate(records):
        # What has gone since the snapshot was taken is no leak.
        if entries[index]() is not None:
            groups.setdefault((record.site, record.state, entries[index] in left), []).append(index)
    oldest = [entries[indices[0]] for indices in groups.values()]
    holders = find_holders(oldest, time_limit_s=time_limit_s, object_limit=object_limit)
    found: dict[bool, list[Group]] = {False: [], True: []}
    for (site, state, is_left), indices in groups.items():
        holder = holders.get(entries[indices[0]], "gone while the report was made")
        found[is_left].append(Group(site, state, holder, tuple(records[index] for index in indices)))
    for rows in found.values():
        rows.sort(key=_badness)
    return Report(tuple(found[False]), tuple(found[True]))


def _badness(group: Group) -> tuple[int, int, str, int]:
    site = group.site
    return (-group.nbytes, -group.count, "" if site is None else site.file, 0 if site is None else site.line)
