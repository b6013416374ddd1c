"""Read and write report files, and merge the reports of several processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from ...scopes.base.files import write_whole
from ..report.leaks import Leak, Trend
from ..report.live import LiveSite
from ..report.report import Process, Report, UnusedSuppression
from ..report.retainer import Retainer
from ..report.timeline import AT_MOST, Band, Pass, Sample, Timeline
from ..reporters.json_report import ReportFileError, json_of, report_from_json

__all__ = [
    "asked_report",
    "is_running",
    "merged",
    "reports_in",
    "timelines_together",
    "write_report",
]

# Report files are written as a whole or not at all, and read from the folder of a session.


def write_report(report: Report, output: Path) -> None:
    """Write a file as a whole or not at all; a pipe or terminal is written to directly."""
    write_whole(output, json_of(report).encode())


def reports_in(folder: Path | None) -> list[Report]:
    """Return the reports that processes wrote into a folder.

    Of the reports of one process, the one that `merged` shall take comes first. For a killed
    process that is the one that it was asked for, or else the last one that it wrote.
    """
    found: list[Report] = []
    for path in (*folder.glob(asked_report(folder, "*").name), *sorted(folder.glob("*.json"))) if folder else ():
        # A process that was killed while it wrote left its last report, or none.
        with suppress(OSError, ReportFileError, UnicodeDecodeError):
            found.append(_told_dead(report_from_json(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda report: report.program.ended in ("unfinished", "killed"))


def asked_report(folder: Path, pid: int | str) -> Path:
    """Return the file of the report that a process was asked for before its parent ended."""
    return folder / f"asked-{pid}"


def _told_dead(report: Report) -> Report:
    """Return the report of a process that was killed, marked as such."""
    if report.program.ended != "unfinished" or is_running(report.program.pid):
        return report
    return replace(
        report,
        program=replace(report.program, ended="killed"),
        processes=tuple(replace(process, ended="killed") for process in report.processes),
    )


def is_running(pid: int) -> bool:
    """Return whether a process is there that has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    # A process that has ended but was not waited for still exists.
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] != [b"Z"]
    return True


# Join the timelines of several processes by the same clock.


T = TypeVar("T")
_Row = TypeVar("_Row", Leak, LiveSite, Retainer)

_SHARE_OF_FIRST: Final = 0.5


def timelines_together(reports: Sequence[Report]) -> Timeline:
    """Return the timelines of several processes as one.

    Times are in seconds since the start of the first, and each item has its process.

    Of each sort at most as many are kept as of one process: half of them of the first, the others
    of the rest in equal parts; thinned evenly.
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
    """Return how many seconds a process started after the first, by their clocks."""
    try:
        starts = [datetime.fromisoformat(each.program.started_at) for each in (first, report)]
        return (starts[1] - starts[0]).total_seconds()
    except (TypeError, ValueError):
        return 0.0


def _fitting(lists: Sequence[Sequence[T]]) -> list[T]:
    """Return the rows of several processes that are kept; the first process matters most."""
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
    """Return at most so many rows, spread evenly, the last among them."""
    if len(rows) <= at_most:
        return list(rows)
    return [rows[len(rows) - 1 - (index * len(rows)) // at_most] for index in range(at_most)][::-1]


# Merge the reports of several processes: workers with their parent, or ranks.


_RECORDS_AT_MOST: Final = 20


def merged(reports: Sequence[Report]) -> Report:
    """Return one report of several processes.

    The program and the settings are those of the first; the time lines of all are one: see
    `timelines_together`. The same leak in several workers is one leak: its holders are those of the
    worker that has the most, and its counts and bytes are added up, of the workers that were there
    at the same time, when these had the most. Those of different ranks, and of programs that were
    reported apart, stay apart.

    Parameters
    ----------
    reports : sequence of Report
        At least one. One of the same process twice counts once, as it came first.

    Raises
    ------
    ValueError
        There is none.
    """
    if not reports:
        raise ValueError("there is no report to merge")
    main = reports[0]
    different: dict[tuple[int, str], Report] = {}
    for report in reports:
        different.setdefault((report.program.pid, report.program.started_at), report)
    rows = list(different.values())
    if len(rows) == 1:
        return main
    leaks, of_gone_leaks = _together(rows, lambda report: report.leaks)
    kept, of_gone_kept = _together(rows, lambda report: report.kept)
    return replace(
        main,
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, sum(report.nbytes for report in rows) - of_gone_leaks),
        leaks=leaks,
        kept=kept,
        kept_nbytes=max(0, sum(report.kept_nbytes for report in rows) - of_gone_kept),
        unwatched=tuple(dict.fromkeys(_all(rows, lambda report: report.unwatched))),
        leftovers=_together(rows, lambda report: report.leftovers)[0],
        suppressed=tuple(_all(rows, lambda report: report.suppressed)),
        unused_suppressions=_unused_in_all(rows),
        timeline=timelines_together(rows),
        sites=_sites(rows),
        processes=tuple(_all(rows, lambda report: report.processes)),
        retainers=_retainers_together(rows),
    )


def _all(reports: Iterable[Report], rows: Callable[[Report], Iterable[T]]) -> list[T]:
    return [row for report in reports for row in rows(report)]


_Life = tuple[str, str]
"""When a process began and ended, in UTC."""

_NEVER: Final = "~"
"""A time after all others."""


def _together(reports: Iterable[Report], rows: Callable[[Report], Iterable[Leak]]) -> tuple[tuple[Leak, ...], int]:
    """Return the leaks, equal ones of different workers of a rank joined, the most bytes first.

    Returns
    -------
    leaks : tuple of Leak
        The leaks.
    nbytes : int
        The bytes that they leave out, of workers that others had taken the place of.
    """
    groups: dict[tuple[object, ...], list[tuple[_Life, Leak]]] = {}
    for number, report in enumerate(reports):
        # Machines give the same process id to processes of their own.
        processes = {process.pid: process for process in report.processes}
        for leak in rows(report):
            process = processes.get(leak.pid)
            if leak.rank is None and process is not None:
                leak = replace(leak, rank=process.rank)
            place = (number, leak.pid) if process is None or process.role == "main" else "worker"
            key = place, leak.rank, leak.fingerprint, leak.state, leak.site
            groups.setdefault(key, []).append((_life_of(process), leak))
    most = [_at_once(those) for those in groups.values()]
    found = [_sum(those) for those in most]
    found.sort(key=lambda leak: (-leak.nbytes, -leak.count, str(leak.site), _last(leak.rank), leak.pid))
    of_all = sum(leak.nbytes for those in groups.values() for _, leak in those)
    return tuple(found), of_all - sum(leak.nbytes for leak in found)


def _retainers_together(reports: Iterable[Report]) -> tuple[Retainer, ...]:
    """Return what retains memory, the same holder in several workers of a rank as one row."""
    groups: dict[tuple[object, ...], list[tuple[_Life, Retainer]]] = {}
    for number, report in enumerate(reports):
        processes = {process.pid: process for process in report.processes}
        for row in report.retainers:
            process = processes.get(row.pid)
            is_main = process is None or process.role == "main"
            place = (number, row.pid) if is_main else ("worker", None if process is None else process.rank)
            key = place, row.holder, row.type, frozenset(row.sites), row.freed
            groups.setdefault(key, []).append((_life_of(process), row))
    found = [_sum_of_retainers(_at_once(rows)) for rows in groups.values()]
    return tuple(sorted(found, key=lambda row: -row.nbytes))


def _life_of(process: Process | None) -> _Life:
    """Return when a process began and ended; where that is not known, it was there all the time."""
    if process is None:
        return "", _NEVER
    return process.began_at or "", process.ended_at or _NEVER


def _at_once(rows: Sequence[tuple[_Life, _Row]]) -> list[_Row]:
    """Return the rows of the processes that had the most bytes at the same time.

    A `DataLoader` starts new workers in each epoch: what those before had kept went with them.
    """
    there = (
        [row for (began, ended), row in rows if began == moment or began < moment < ended]
        for moment in dict.fromkeys(began for (began, _), _ in rows)
    )
    return max(there, key=lambda those: sum(row.nbytes for row in those))


def _sum_of_retainers(rows: Sequence[Retainer]) -> Retainer:
    # How much it grows in a pass is told of one worker, as of a leak.
    most = max(rows, key=lambda row: (row.nbytes, row.count))
    return replace(
        most,
        length=most.length if len(rows) == 1 else None,
        count=sum(row.count for row in rows),
        nbytes=sum(row.nbytes for row in rows),
    )


def _last(rank: int | None) -> float:
    return math.inf if rank is None else rank


def _sum(leaks: list[Leak]) -> Leak:
    most = max(leaks, key=lambda leak: (leak.nbytes, leak.count))
    if len(leaks) == 1:
        return most
    oldest = [leak.oldest_age_s for leak in leaks if leak.oldest_age_s is not None]
    newest = [leak.newest_age_s for leak in leaks if leak.newest_age_s is not None]
    return replace(
        most,
        count=sum(leak.count for leak in leaks),
        nbytes=sum(leak.nbytes for leak in leaks),
        used_nbytes=sum(leak.used_nbytes for leak in leaks),
        graph_nbytes=sum(leak.graph_nbytes for leak in leaks),
        trend=_trend_of(most, leaks),
        made=None if all(leak.made is None for leak in leaks) else sum(leak.made or leak.count for leak in leaks),
        scopes=tuple(dict.fromkeys(scope for leak in leaks for scope in leak.scopes)),
        oldest_age_s=max(oldest, default=None),
        newest_age_s=min(newest, default=None),
        records=tuple(record for leak in leaks for record in leak.records)[:_RECORDS_AT_MOST],
    )


def _trend_of(most: Leak, leaks: Sequence[Leak]) -> Trend | None:
    """Return the trend of one of some workers; if over births, then over those of all of them."""
    if most.trend is None or most.trend.over != "births":
        return most.trend
    births = [leak.trend.passes for leak in leaks if leak.trend is not None and leak.trend.over == "births"]
    others = [leak.made or leak.count for leak in leaks if leak.trend is None]
    return replace(most.trend, passes=sum(births) + sum(others))


def _sites(reports: Iterable[Report]) -> tuple[LiveSite, ...]:
    groups: dict[tuple[object, ...], list[tuple[_Life, LiveSite]]] = {}
    for report in reports:
        life = _life_of(report.processes[0] if len(report.processes) == 1 else None)
        for row in report.sites:
            groups.setdefault((row.site, row.frames, row.kind, row.device), []).append((life, row))
    found: list[LiveSite] = []
    for those in groups.values():
        most = _at_once(those)
        found.append(
            replace(
                most[0],
                count=sum(row.count for row in most),
                nbytes=sum(row.nbytes for row in most),
                peak_nbytes=sum(row.peak_nbytes for row in most),
                births=sum(row.births for _, row in those),
            )
        )
    found.sort(key=lambda row: (-row.nbytes, -row.count, str(row.site), row.kind))
    return tuple(found)


def _unused_in_all(reports: Sequence[Report]) -> tuple[UnusedSuppression, ...]:
    unused = set(reports[0].unused_suppressions)
    for report in reports[1:]:
        unused &= set(report.unused_suppressions)
    return tuple(row for row in reports[0].unused_suppressions if row in unused)
