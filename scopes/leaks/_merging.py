"""Reports of several processes as one: those of workers with their parent's, those of ranks with one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from ._facts import Process
from ._leak import Leak
from ._live import LiveSite
from ._report import Report, UnusedSuppression
from ._timelines import timelines_together

__all__ = ["merged"]

T = TypeVar("T")

_RECORDS_AT_MOST: Final = 20


def merged(reports: Sequence[Report]) -> Report:
    """One report of several processes.

    The program and the settings are those of the first; the time lines of all are one: see `timelines_together`. The
    same leak in several workers is one leak: its counts and bytes are added up, its holders are those of the worker
    that has the most.

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
    processes = {process.pid: process for report in rows for process in report.processes}
    leaks = _together(_all(rows, lambda report: report.leaks), processes)
    return replace(
        main,
        count=sum(leak.count for leak in leaks),
        nbytes=sum(report.nbytes for report in rows),
        leaks=leaks,
        kept=_together(_all(rows, lambda report: report.kept), processes),
        leftovers=_together(_all(rows, lambda report: report.leftovers), processes),
        suppressed=tuple(_all(rows, lambda report: report.suppressed)),
        unused_suppressions=_unused_in_all(rows),
        timeline=timelines_together(rows),
        sites=_sites(_all(rows, lambda report: report.sites)),
        processes=tuple(_all(rows, lambda report: report.processes)),
    )


def _all(reports: Iterable[Report], rows: Callable[[Report], Iterable[T]]) -> list[T]:
    return [row for report in reports for row in rows(report)]


def _together(leaks: Iterable[Leak], processes: dict[int, Process]) -> tuple[Leak, ...]:
    """Leaks with those of different workers that are the same taken together, the most bytes first."""
    groups: dict[tuple[object, ...], list[Leak]] = {}
    for leak in leaks:
        process = processes.get(leak.pid)
        place = leak.pid if process is None or process.role == "main" else "worker"
        key = (place, leak.fingerprint, leak.state, leak.site)
        groups.setdefault(key, []).append(leak)
    found = [_sum(those) for those in groups.values()]
    found.sort(key=lambda leak: (-leak.nbytes, -leak.count, str(leak.site), leak.pid))
    return tuple(found)


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
        scopes=tuple(dict.fromkeys(scope for leak in leaks for scope in leak.scopes)),
        oldest_age_s=max(oldest, default=None),
        newest_age_s=min(newest, default=None),
        records=tuple(record for leak in leaks for record in leak.records)[:_RECORDS_AT_MOST],
    )


def _sites(rows: Iterable[LiveSite]) -> tuple[LiveSite, ...]:
    groups: dict[tuple[object, ...], list[LiveSite]] = {}
    for row in rows:
        groups.setdefault((row.site, row.frames, row.kind, row.device), []).append(row)
    found = [
        replace(
            those[0],
            count=sum(row.count for row in those),
            nbytes=sum(row.nbytes for row in those),
            peak_nbytes=sum(row.peak_nbytes for row in those),
            births=sum(row.births for row in those),
        )
        for those in groups.values()
    ]
    found.sort(key=lambda row: (-row.nbytes, -row.count, str(row.site), row.kind))
    return tuple(found)


def _unused_in_all(reports: Sequence[Report]) -> tuple[UnusedSuppression, ...]:
    unused = set(reports[0].unused_suppressions)
    for report in reports[1:]:
        unused &= set(report.unused_suppressions)
    return tuple(row for row in reports[0].unused_suppressions if row in unused)
