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
from ..report.leaks import RECORDS_AT_MOST, Leak, Trend
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

    If a process wrote several, the one that `merged` shall take comes first. For a killed process
    that is the report that it was asked for, or else the last one that it wrote.
    """
    found: list[Report] = []
    for path in (*folder.glob(asked_report(folder, "*").name), *sorted(folder.glob("*.json"))) if folder else ():
        # A process that was killed while it wrote left its last report, or none.
        with suppress(OSError, ReportFileError, UnicodeDecodeError):
            found.append(_marked_killed(report_from_json(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda report: report.program.ended in ("unfinished", "killed"))


def asked_report(folder: Path, pid: int | str) -> Path:
    """Return the file of the report that a process was asked for before its parent ended."""
    return folder / f"asked-{pid}"


def _marked_killed(report: Report) -> Report:
    """Return the report of a process, marked as killed if it is gone without a last report."""
    if report.program.ended != "unfinished" or is_running(report.program.pid):
        return report
    return replace(
        report,
        program=replace(report.program, ended="killed"),
        processes=tuple(replace(process, ended="killed") for process in report.processes),
    )


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    # A process that has ended but was not waited for (a zombie) still exists.
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] != [b"Z"]
    return True


# Join the timelines of several processes by the same clock.


T = TypeVar("T")
_Row = TypeVar("_Row", Leak, LiveSite, Retainer)

_SHARE_OF_FIRST: Final = 0.5
"""The first process has at least this share of the items of a timeline."""


def timelines_together(reports: Sequence[Report]) -> Timeline:
    """Return the timelines of several processes as one.

    Times are in seconds since the start of the first process, and each item has its process.

    There are at most as many samples, passes and scopes as in the timeline of one process: at least
    half of them of the first process, and equal parts of the others. Some are left out evenly.
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
    """Return how many seconds after the first a process started; 0 if that is unknown."""
    try:
        first_start, start = (datetime.fromisoformat(each.program.started_at) for each in (first, report))
        return (start - first_start).total_seconds()
    except (TypeError, ValueError):
        return 0.0


def _fitting(lists: Sequence[Sequence[T]]) -> list[T]:
    """Return the rows of several processes, `AT_MOST` in all; most rows of the first are kept."""
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


def merged(reports: Sequence[Report]) -> Report:
    """Return one report of several processes.

    The program and the settings are those of the first report. The timelines are joined: see
    `timelines_together`. The same leak in several workers becomes one leak. Its holders are those
    of the worker with the most bytes. Its counts and bytes are sums over the workers that ran at
    the same time, for the time when these had the most bytes. Leaks of different ranks, and of
    programs that were reported separately, are not joined.

    Parameters
    ----------
    reports : sequence of Report
        The reports. If a process has several, only the first one counts.

    Raises
    ------
    ValueError
        There is no report.
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
    leaks, gone_nbytes = _together(rows, lambda report: report.leaks)
    kept, gone_kept_nbytes = _together(rows, lambda report: report.kept)
    leftovers, _ = _together(rows, lambda report: report.leftovers)
    return replace(
        main,
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, sum(report.nbytes for report in rows) - gone_nbytes),
        leaks=leaks,
        kept=kept,
        kept_nbytes=max(0, sum(report.kept_nbytes for report in rows) - gone_kept_nbytes),
        unwatched=tuple(dict.fromkeys(_all(rows, lambda report: report.unwatched))),
        leftovers=leftovers,
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
"""Sorts after every time that is written as text."""


def _together(reports: Iterable[Report], rows: Callable[[Report], Iterable[Leak]]) -> tuple[tuple[Leak, ...], int]:
    """Return the leaks of reports; the same leak in workers of one rank is joined.

    Returns
    -------
    leaks : tuple of Leak
        The leaks, the most bytes first.
    nbytes : int
        The bytes that are left out: those of workers that did not run when the others had the most.
    """
    groups: dict[tuple[object, ...], list[tuple[_Life, Leak]]] = {}
    for number, report in enumerate(reports):
        # By report, because processes of different machines may have the same id.
        processes = {process.pid: process for process in report.processes}
        for leak in rows(report):
            process = processes.get(leak.pid)
            if leak.rank is None and process is not None:
                leak = replace(leak, rank=process.rank)
            place = (number, leak.pid) if process is None or process.role == "main" else "worker"
            key = place, leak.rank, leak.fingerprint, leak.state, leak.site
            groups.setdefault(key, []).append((_life_of(process), leak))
    found = [_sum(_at_once(group)) for group in groups.values()]
    found.sort(key=lambda leak: (-leak.nbytes, -leak.count, str(leak.site), _none_last(leak.rank), leak.pid))
    all_nbytes = sum(leak.nbytes for group in groups.values() for _, leak in group)
    return tuple(found), all_nbytes - sum(leak.nbytes for leak in found)


def _retainers_together(reports: Iterable[Report]) -> tuple[Retainer, ...]:
    """Return the retainers of reports; the same one in workers of one rank is joined."""
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
    """Return when a process began and ended; before and after all times if that is not known."""
    if process is None:
        return "", _NEVER
    return process.began_at or "", process.ended_at or _NEVER


def _at_once(rows: Sequence[tuple[_Life, _Row]]) -> list[_Row]:
    """Return the rows of those processes that ran at the same time with the most bytes.

    A `DataLoader` starts new workers in each epoch. What earlier workers kept was freed with them.
    """
    rows_at_moments = (
        [row for (began, ended), row in rows if began == moment or began < moment < ended]
        for moment in dict.fromkeys(began for (began, _), _ in rows)
    )
    return max(rows_at_moments, key=lambda running: sum(row.nbytes for row in running))


def _sum_of_retainers(rows: Sequence[Retainer]) -> Retainer:
    # The growth in a pass is that of one worker, as for a leak.
    most = max(rows, key=lambda row: (row.nbytes, row.count))
    return replace(
        most,
        length=most.length if len(rows) == 1 else None,
        count=sum(row.count for row in rows),
        nbytes=sum(row.nbytes for row in rows),
    )


def _none_last(rank: int | None) -> float:
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
        records=tuple(record for leak in leaks for record in leak.records)[:RECORDS_AT_MOST],
    )


def _trend_of(most: Leak, leaks: Sequence[Leak]) -> Trend | None:
    """Return the trend of the worker with the most bytes; over births, those of all workers."""
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
    for group in groups.values():
        running = _at_once(group)
        found.append(
            replace(
                running[0],
                count=sum(row.count for row in running),
                nbytes=sum(row.nbytes for row in running),
                peak_nbytes=sum(row.peak_nbytes for row in running),
                births=sum(row.births for _, row in group),
            )
        )
    found.sort(key=lambda row: (-row.nbytes, -row.count, str(row.site), row.kind))
    return tuple(found)


def _unused_in_all(reports: Sequence[Report]) -> tuple[UnusedSuppression, ...]:
    """Return the suppressions that matched nothing in any report."""
    unused = set(reports[0].unused_suppressions)
    for report in reports[1:]:
        unused &= set(report.unused_suppressions)
    return tuple(row for row in reports[0].unused_suppressions if row in unused)
