"""What of a report is told: the kinds of tensor that were asked for, leaks of many bytes, and what a worker keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ._leak import Leak, fingerprint_of
from ._report import Report

__all__ = ["above", "of_kinds", "of_worker"]

_KEPT_BY_A_WORKER: Final = frozenset({"escaped", "growth"})


def of_worker(leak: Leak) -> Leak:
    """A leak as a worker has it: what it keeps is the worker's, and stays as long as it."""
    if leak.kind not in _KEPT_BY_A_WORKER:
        return leak
    return replace(
        leak,
        kind="worker",
        explanation=f"A worker process keeps it. {leak.explanation}",
        fingerprint=fingerprint_of("worker", leak.tensor_kind, leak.site, leak.op),
    )


def of_kinds(report: Report, kinds: tuple[str, ...] | None) -> Report:
    """The report without what is of other kinds of tensor."""
    if kinds is None:
        return report
    leaks = _leaks_of(report.leaks, kinds)
    left_out = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    return replace(
        report,
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, report.nbytes - left_out),
        leaks=leaks,
        kept=_leaks_of(report.kept, kinds),
        leftovers=_leaks_of(report.leftovers, kinds),
        sites=tuple(site for site in report.sites if site.kind in kinds),
    )


def _leaks_of(leaks: tuple[Leak, ...], kinds: tuple[str, ...]) -> tuple[Leak, ...]:
    return tuple(leak for leak in leaks if leak.tensor_kind is None or leak.tensor_kind in kinds)


def above(report: Report, threshold_nbytes: int) -> Report:
    """The report without leaks of few bytes."""
    leaks = tuple(leak for leak in report.leaks if leak.nbytes >= threshold_nbytes)
    if len(leaks) == len(report.leaks):
        return report
    left_out = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    return replace(
        report, leaks=leaks, count=sum(leak.count for leak in leaks), nbytes=max(0, report.nbytes - left_out)
    )
