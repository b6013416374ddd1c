"""From a snapshot to a report: what is there is grouped by line and by the reason why it is there."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from .._entry import Entry
from ._comparison import nbytes_of
from ._facts import Settings
from ._holders import Holders, Reason
from ._leak import Excerpt, Leak, LeakKind, Sureness, fingerprint_of
from ._leftovers import leftovers_among
from ._live import live_sites
from ._records import Record, State
from ._report import Report
from ._site import Site
from ._subject import Subject

__all__ = ["excerpt_of", "report_of"]

RECORDS_KEPT: Final = 20
_LINES_AROUND: Final = 2


def report_of(
    records: tuple[Record, ...],
    entries: tuple[Subject, ...],
    closings: tuple[int | None, ...],
    *,
    time_limit_s: float,
    object_limit: int,
) -> Report:
    """Group what a snapshot found, and find the holders of each group."""
    disposed = [index for index, record in enumerate(records) if record.state == "disposed"]
    resources = [entry for index in disposed if isinstance(entry := entries[index], Entry)]
    left = leftovers_among(resources, [closings[index] for index in disposed])
    groups: dict[tuple[Site | None, State, str, str | None, bool, bool], list[int]] = {}
    for index, record in enumerate(records):
        # What has gone since the snapshot was taken is no leak.
        if entries[index]() is not None:
            key = (record.site, record.state, record.kind, record.op, record.is_view, entries[index] in left)
            groups.setdefault(key, []).append(index)
    leaks: list[Leak] = []
    leftovers: list[Leak] = []
    counted: list[Record] = []
    with Holders(
        [[entries[index] for index in indices] for indices in groups.values()],
        time_limit_s=time_limit_s,
        object_limit=object_limit,
    ) as holders:
        for (*_, is_left), indices in groups.items():
            by_reason: dict[Reason, list[int]] = {}
            for index in indices:
                by_reason.setdefault(holders.reason_of(entries[index]), []).append(index)
            for reason, those in by_reason.items():
                found = [records[index] for index in those]
                leak = _leak(found, [entries[index] for index in those], reason, holders, is_left)
                (leftovers if is_left else leaks).append(leak)
                if not is_left:
                    counted += found
    leaks.sort(key=_badness)
    leftovers.sort(key=_badness)
    return Report(
        settings=Settings(time_limit_s=time_limit_s),
        count=len(counted),
        nbytes=nbytes_of(counted),
        leaks=tuple(leaks),
        leftovers=tuple(leftovers),
        sites=live_sites(records),
    )


def excerpt_of(site: Site | None) -> Excerpt | None:
    """The lines around a site, where its source can be read."""
    if site is None or site.line <= 0:
        return None
    lines = linecache.getlines(site.file)
    if site.line > len(lines):
        return None
    first = max(1, site.line - _LINES_AROUND)
    return Excerpt(
        site.file, first, tuple(line.rstrip("\r\n") for line in lines[first - 1 : site.line + _LINES_AROUND]), site.line
    )


@final
@dataclass(frozen=True, slots=True)
class _Verdict:
    kind: LeakKind
    sure: Sureness
    explanation: str


def _leak(
    records: Sequence[Record], subjects: Sequence[Subject], reason: Reason, holders: Holders, is_left: bool
) -> Leak:
    oldest = records[0]
    verdict = _verdict(oldest, reason, is_left)
    ages = [record.age_s for record in records if record.age_s is not None]
    cycle = holders.cycle_of(subjects) if reason == "cycle" else None
    return Leak(
        kind=verdict.kind,
        sure=verdict.sure,
        tensor=str(oldest),
        tensor_kind=oldest.kind,
        device=oldest.device,
        count=len(records),
        nbytes=nbytes_of(records),
        used_nbytes=sum(record.used_nbytes for record in records),
        site=oldest.site,
        frames=oldest.frames,
        op=oldest.op,
        state=oldest.state,
        disposal=next((record.disposal for record in records if record.disposal is not None), None),
        scopes=tuple(dict.fromkeys(record.scope for record in records)),
        oldest_age_s=max(ages, default=None),
        newest_age_s=min(ages, default=None),
        generation=oldest.generation,
        trend=None,
        holders=holders.chains_of(subjects),
        carriers=holders.carriers_of(subjects) if reason == "graph" else (),
        members=() if cycle is None else (cycle.loop,),
        explanation=verdict.explanation,
        fingerprint=fingerprint_of(verdict.kind, oldest.kind, oldest.site, oldest.op),
        pid=os.getpid(),
        excerpt=excerpt_of(oldest.site),
        records=tuple(records[:RECORDS_KEPT]),
    )


def _verdict(oldest: Record, reason: Reason, is_left: bool) -> _Verdict:
    if oldest.state == "disposed":
        if is_left:
            return _Verdict("escaped", "possible", "Disposed, and only a variable that was left over still names it.")
        return _Verdict(
            "escaped",
            "certain",
            "Its scope has ended, and the holder still references it: the next use raises DisposedError. Let the "
            "holder go, or move it out of its scope.",
        )
    if reason == "cycle":
        return _Verdict(
            "cycle", "certain", "Nothing reaches it, but it waits for the next gc.collect(): break the cycle."
        )
    if oldest.is_view:
        return _Verdict(
            "view",
            "likely",
            "A small view keeps the whole storage alive: keep a copy of what is used.",
        )
    if reason == "exception":
        return _Verdict(
            "exception",
            "certain",
            "A kept exception keeps the frames of its traceback with all their variables: keep its text, or call "
            "traceback.clear_frames().",
        )
    return _Verdict("alive", "possible", "It is alive: the holder says who references it.")


def _badness(leak: Leak) -> tuple[int, int, str, int]:
    site = leak.site
    return (-leak.nbytes, -leak.count, "" if site is None else site.file, 0 if site is None else site.line)
