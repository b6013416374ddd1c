"""From a snapshot to a report: what is there is grouped by line and by the reason why it is there."""

from __future__ import annotations

import os
from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, final

from ...scopes.identity import Entry
from ...scopes.sites import Site
from ..births.lines import Births
from ..births.log import Escape, Row, Sites, Subject, UnheldMemory
from ..holders.holders import Holders, Reason, leftovers_among
from ..report.leaks import Leak, excerpt_of, fingerprint_of
from ..report.live import live_sites
from ..report.records import Record, State, nbytes_of
from ..report.report import Report, Settings
from .growth import Evidence
from .verdicts import Facts, verdict_of
from .without_tensors import unclosed_scopes

__all__ = [
    "Inventory",
    "report_of",
]

_Line = tuple[Site | None, State, str, str | None, bool, bool]
"""Line, state, kind, call, whether it is a view, whether it is left over."""

RECORDS_KEPT: Final = 20
_VIEWED_NBYTES: Final = 64_000
_PINNING: Final = ("view", "escaped")
_IMPORTING: Final = "<frozen importlib"
_DYING: Final = ("exception in flight", "sys.last_")


@final
@dataclass(frozen=True, slots=True)
class Inventory:
    """What a snapshot found, in parallel sequences, in the order of birth.

    Attributes
    ----------
    records : sequence of Record
        What is told of each resource.
    subjects : sequence of Entry or Seen
        What each record is of.
    rows : sequence of (Row or None)
        What is known of each birth; None where nobody saw it.
    sites : Sites
        What is known of their lines.
    closings : dict
        For what was disposed, which closing of a scope did it, where that is known.
    after : int
        The number of the last birth before the detector was opened.
    watched : bool
        Whether it is all that a detector knows, and what else it knows is to be told.
    """

    records: Sequence[Record]
    subjects: Sequence[Subject]
    rows: Sequence[Row | None]
    sites: Sites
    closings: dict[Entry, int]
    after: int
    watched: bool


def report_of(found: Inventory, *, time_limit_s: float, object_limit: int, of_program: bool) -> Report:
    """Group what a snapshot found by line and reason, and find the holders of each group.

    Parameters
    ----------
    found : Inventory
        What was found.
    time_limit_s, object_limit : float, int
        When the search for holders gives up.
    of_program : bool
        Whether this is about a whole program: what its variables lead to is no leak then unless it
        shows signs of one.
    """
    records, subjects = found.records, found.subjects
    groups = _grouped(found, _left_over(found))
    views = {index: identities for index in _large(records) if (identities := _pinned_by(found, index))}
    sizes = {identity: nbytes for identities in views.values() for identity, nbytes in identities}
    escapes: dict[Subject, Escape] = {
        subject: escape
        for indices in groups.values()
        for index in indices
        if not isinstance(subject := subjects[index], Entry) and (escape := subject.escape) is not None
    }
    evidence = Evidence(found.after)
    leaks: list[Leak] = []
    kept: list[Leak] = []
    leftovers: list[Leak] = []
    counted: list[Record] = []
    with Holders(
        [[subjects[index] for index in indices] for indices in groups.values()],
        time_limit_s=time_limit_s,
        object_limit=object_limit,
        sizes=sizes,
    ) as holders:
        left_memory = holders.left_over(_rows_of(found, escapes)) if of_program and escapes else set[Subject]()
        for (*_, is_left), indices in groups.items():
            parts: dict[tuple[Reason, int, Escape | None, bool], list[int]] = {}
            those_subjects = [subjects[index] for index in indices]
            for index, subject, reason in zip(indices, those_subjects, holders.reasons_of(those_subjects), strict=True):
                times = _pinned_times(views[index], holders) if index in views else 1.0
                escape = escapes.get(subject) if escapes else None
                is_part_left = is_left or (bool(left_memory) and subject in left_memory)
                parts.setdefault((reason, min(3, int(times)), escape, is_part_left), []).append(index)
            for (reason, _, escape, is_part_left), those in parts.items():
                group = _Group(found, those, reason, escape, is_part_left, views)
                leak, is_leak = group.leak(holders, evidence)
                if is_part_left:
                    leftovers.append(leak)
                elif of_program and not is_leak:
                    # What libraries make when they are imported is theirs, and of no interest.
                    if leak.site is None or not leak.site.file.startswith(_IMPORTING):
                        kept.append(leak)
                else:
                    leaks.append(leak)
                    counted += [records[index] for index in those]
    leaks += unclosed_scopes(of_program=of_program) if found.watched else []
    for rows in (leaks, kept, leftovers):
        rows.sort(key=_badness)
    return Report(
        settings=Settings(time_limit_s=time_limit_s),
        count=sum(leak.count for leak in leaks),
        nbytes=nbytes_of(counted),
        leaks=tuple(leaks),
        kept=tuple(kept),
        leftovers=tuple(leftovers),
        sites=live_sites(records),
    )


def _rows_of(found: Inventory, escapes: Container[Subject]) -> dict[UnheldMemory, Row]:
    return {
        subject: row
        for place, subject in enumerate(found.subjects)
        if not isinstance(subject, Entry) and subject in escapes and (row := found.rows[place]) is not None
    }


def _grouped(found: Inventory, left: set[Entry]) -> dict[_Line, list[int]]:
    """What is there by line and nature; what has gone since the snapshot was taken is no leak."""
    # The lines by their identity first: there are few of them, and comparing them takes time.
    by_identity: dict[tuple[int, State, str, str | None, bool, bool], list[int]] = {}
    for index, (record, subject) in enumerate(zip(found.records, found.subjects, strict=True)):
        if subject() is not None:
            is_view = record.used_nbytes < record.nbytes and record.state == "alive"
            is_left = bool(left) and subject in left
            key = (id(record.site), record.state, record.kind, record.op, is_view, is_left)
            those = by_identity.get(key)
            if those is None:
                by_identity[key] = [index]
            else:
                those.append(index)
    groups: dict[_Line, list[int]] = {}
    for (_, state, kind, op, is_view, is_left), indices in by_identity.items():
        line = found.records[indices[0]].site, state, kind, op, is_view, is_left
        if line in groups:
            groups[line] = sorted([*groups[line], *indices])
        else:
            groups[line] = indices
    return groups


def _left_over(found: Inventory) -> set[Entry]:
    resources = [
        subject
        for record, subject in zip(found.records, found.subjects, strict=True)
        if record.state == "disposed" and isinstance(subject, Entry)
    ]
    return leftovers_among(resources, [found.closings.get(subject) for subject in resources])


def _large(records: Sequence[Record]) -> list[int]:
    """Those of some records whose memory is worth a look at who uses it."""
    return [index for index, record in enumerate(records) if record.nbytes >= _VIEWED_NBYTES]


def _pinned_by(found: Inventory, index: int) -> tuple[tuple[Hashable, int], ...]:
    """The storages behind a record that may be pinned by views, each with its bytes."""
    record, subject = found.records[index], found.subjects[index]
    if record.state != "alive":
        return ()
    if not isinstance(subject, Entry):
        return ((subject.identity, subject.nbytes),)
    resource = subject() if record.is_view else None
    return () if resource is None else tuple(subject.kind.storages(resource))


def _pinned_times(storages: Sequence[tuple[Hashable, int]], holders: Holders) -> float:
    pinned = sum(nbytes for _, nbytes in storages)
    used = 0
    for identity, nbytes in storages:
        known = holders.used_nbytes(identity)
        used += nbytes if not known else min(known, nbytes)
    return 1.0 if not pinned or not used else pinned / used


@final
@dataclass(frozen=True, slots=True)
class _Group:
    """Resources of one line that are there for one reason, by their places in an inventory."""

    found: Inventory
    places: list[int]
    reason: Reason
    escape: Escape | None
    is_left: bool
    views: dict[int, tuple[tuple[Hashable, int], ...]]

    def leak(self, holders: Holders, evidence: Evidence) -> tuple[Leak, bool]:
        """What is told of them, and whether that is a leak also at the end of a program."""
        records = [self.found.records[index] for index in self.places]
        subjects = [self.found.subjects[index] for index in self.places]
        births = Births([self.found.rows[index] for index in self.places], self.found.sites)
        oldest = records[0]
        count, nbytes = _estimated(records, births.weights())
        trend = None if self.is_left else evidence.trend_of(births, [record.nbytes for record in records])
        chains = holders.chains_of(subjects)
        cycle = holders.cycle_of(subjects) if self.reason == "cycle" else None
        views = [pair for index in self.places for pair in self.views.get(index, ())] if self.views else []
        times = _pinned_times(views, holders)
        verdict = verdict_of(
            Facts(
                oldest=oldest,
                count=count,
                nbytes=nbytes,
                reason=self.reason,
                escape=self.escape,
                is_left=self.is_left,
                pinned_times=times,
                trend=trend,
                trend_is_known=evidence.watched_passes,
                is_bounded=evidence.watched(births),
                generations=len({record.generation for record in records}),
                cycle=cycle,
                graph_passes=holders.passes_of(subjects) if self.reason == "held" else 0,
                program_died=all(chain.startswith(_DYING) for chain in chains),
            )
        )
        used = sum(record.used_nbytes for record in records)
        ages = [record.age_s for record in records if record.age_s is not None]
        return Leak(
            kind=verdict.kind,
            sure=verdict.sure,
            tensor=str(oldest),
            tensor_kind=oldest.kind,
            device=oldest.device,
            count=count,
            nbytes=nbytes,
            used_nbytes=min(used, round(nbytes / times)) if verdict.kind in _PINNING else used,
            site=oldest.site,
            frames=oldest.frames,
            op=oldest.op,
            state=oldest.state,
            disposal=next((record.disposal for record in records if record.disposal is not None), None),
            scopes=tuple(dict.fromkeys(record.scope for record in records)),
            oldest_age_s=max(ages, default=None),
            newest_age_s=min(ages, default=None),
            generation=oldest.generation,
            trend=trend,
            holders=chains,
            carriers=holders.carriers_of(subjects) if self.reason == "graph" else (),
            members=() if cycle is None else (cycle.loop,),
            explanation=verdict.explanation,
            fingerprint=fingerprint_of(verdict.kind, oldest.kind, oldest.site, oldest.op),
            pid=os.getpid(),
            excerpt=excerpt_of(oldest.site),
            records=tuple(records[:RECORDS_KEPT]),
        ), verdict.is_leak


def _estimated(records: Sequence[Record], weights: Sequence[float]) -> tuple[int, int]:
    """How many they are, and their bytes; an estimate where births were sampled, which have weights."""
    if not weights:
        return len(records), nbytes_of(records)
    sizes = (record.nbytes * weight for record, weight in zip(records, weights, strict=True))
    return round(sum(weights)), round(sum(sizes))


def _badness(leak: Leak) -> tuple[int, int, str, int]:
    site = leak.site
    return (-leak.nbytes, -leak.count, "" if site is None else site.file, 0 if site is None else site.line)
