"""The time lines of several processes as one: each keeps its own memory, passes and scopes, by the same clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from ._report import Report
from ._timeline import AT_MOST, Band, Pass, Sample, Timeline

__all__ = ["timelines_together"]

T = TypeVar("T")

_SHARE_OF_FIRST: Final = 0.5


def timelines_together(reports: Sequence[Report]) -> Timeline:
    """What was recorded of several processes, in seconds since the start of the first, each with its process.

    Of each sort at most as many are kept as of one process: half of them of the first, the others of the rest in equal
    parts; thinned evenly.
    """
    first = reports[0]
    lines = [_of_process(report, _later_s(first, report)) for report in reports]
    return Timeline(
        samples=tuple(sorted(_fitting([line.samples for line in lines]), key=lambda sample: sample.t_s)),
        passes=tuple(sorted(_fitting([line.passes for line in lines]), key=lambda row: row.t_s)),
        bands=tuple(sorted(_fitting([line.bands for line in lines]), key=lambda band: (band.from_s, band.depth))),
    )


def _of_process(report: Report, later_s: float) -> Timeline:
    line, own = report.timeline, report.program.pid

    def pid_of(row: Sample | Pass | Band) -> int:
        return own if row.pid is None else row.pid

    return Timeline(
        tuple(replace(row, t_s=row.t_s + later_s, pid=pid_of(row)) for row in line.samples),
        tuple(replace(row, t_s=row.t_s + later_s, pid=pid_of(row)) for row in line.passes),
        tuple(
            replace(
                row,
                from_s=row.from_s + later_s,
                to_s=None if row.to_s is None else row.to_s + later_s,
                pid=pid_of(row),
            )
            for row in line.bands
        ),
    )


def _later_s(first: Report, report: Report) -> float:
    """By how much a process started later than the first, as far as their clocks say."""
    try:
        starts = [datetime.fromisoformat(each.program.started_at) for each in (first, report)]
        return (starts[1] - starts[0]).total_seconds()
    except (TypeError, ValueError):
        return 0.0


def _fitting(lists: Sequence[Sequence[T]]) -> list[T]:
    """What is kept of the rows of several processes, the first being the one that matters most."""
    if sum(map(len, lists)) <= AT_MOST:
        return [row for rows in lists for row in rows]
    others = sum(map(len, lists[1:]))
    own = max(round(AT_MOST * _SHARE_OF_FIRST), AT_MOST - others)
    kept = _thinned(lists[0], own)
    share = (AT_MOST - len(kept)) // max(1, len(lists) - 1)
    for rows in lists[1:]:
        kept += _thinned(rows, share)
    return kept


def _thinned(rows: Sequence[T], at_most: int) -> list[T]:
    """So many of some rows, evenly, the last among them."""
    if len(rows) <= at_most:
        return list(rows)
    return [rows[len(rows) - 1 - (index * len(rows)) // at_most] for index in range(at_most)][::-1]
