"""Make the report of a snapshot: group resources by line, and by the reason why they are alive."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Final, final, get_args

from ...scopes.base.process import PATCHES
from ...scopes.base.sites import Site, imports_modules
from ...scopes.framework import Escape, ModelFacts
from ...scopes.identity import Entry
from ...scopes.kinds import MAPPED
from ..births.lines import Beginning, Births
from ..births.log import RecordedMemory, Row, Sites, Subject, UnheldMemory
from ..holders.holders import Holders, Reason, leftovers_among
from ..holders.origins import chain_of
from ..report.leaks import RECORDS_AT_MOST, WARM_UP, Leak, Sureness, Trend, Unjudged, excerpt_of, fingerprint_of
from ..report.live import estimated, live_sites
from ..report.records import Record, State, nbytes_of
from ..report.report import Report, Settings, apart
from ..report.retainer import Retainer
from .growth import BIRTHS_AT_LEAST, EPOCHS, FEW_RESULTS, MODELS, STOPPED, Evidence, are_few_and_large
from .verdicts import EVALUATIONS, WORTH_NBYTES, Facts, Judgement, judgement_on, outlived
from .without_tensors import unclosed_scopes

__all__ = [
    "Census",
    "report_of",
]

_Line = tuple[Site | None, State, str, str | None, bool, bool]
"""Line, state, kind, call, whether it is a view, whether it is left over."""

_BIRTHS_PER_PART: Final = 4
"""Other work was done between two models if there are so many births for each part of a model."""
_BIRTHS_PER_ADDED_PART: Final = 2
"""The same for models that are added to another one, on average."""
_VIEWED_NBYTES: Final = 64_000
"""For smaller memory it is not found out how many bytes its users use."""
_PINNING: Final = ("view", "escaped")
"""The kinds of leaks of which the report says how many bytes are used."""
_GROUP_AT_LEAST: Final = 3
"""A group of fewer is not said to be growing perhaps."""
_AT_WORK_AT_MOST: Final = 1 / 8
"""So large a part of the results of a line may be what the program works on just now."""
_FAR_LARGER: Final = 16
"""Such results do not grow if they have so many times as many bytes as the median of the line."""
_MADE_BY_A_LOOP: Final = 8
"""If a line made at least so many and one is alive, this is the last one of a loop."""
_IN_FLIGHT: Final = ("exception in flight",)
_DYING: Final = (*_IN_FLIGHT, "last exception")
"""The origins of chains that lead through the exception which ended the program."""
_PART_OF_GROWTH: Final = 1 / 4
"""A group with less than this part of what its line grew by is not what grew."""
_OUTLIVED: Final = 3
"""Fewer graphs are not said to stay."""
_GRAPH_TIMES: Final = 2.0
"""The bytes of graphs are reported if they are at least so many times those of the tensors."""
_VERSION: Final = re.compile(r"\d+")
_MAY_GROW: Final = ("held", "suspended", "graph", "unknown")
"""The reasons of groups that may grow."""


@final
@dataclass(frozen=True, slots=True)
class Census:
    """What a snapshot found: resources and memory, in the order of birth.

    Attributes
    ----------
    records : sequence of Record
        The record of each.
    subjects : sequence of Entry or RecordedMemory
        The resource or the memory of each record.
    rows : sequence of (Row or None)
        The row of each birth in the log; None where it was not recorded.
    sites : Sites
        The facts about the sites in the log.
    closings : dict
        For each disposed resource whose disposal was recorded, how many scopes had been closed
        then.
    beginning : Beginning
        The counts of the log when the detector was opened.
    watched : bool
        Whether this is everything that a detector found, so that open scopes are reported too.
    last : int
        The number of the last birth when the snapshot was taken. Other threads go on.
    """

    records: Sequence[Record]
    subjects: Sequence[Subject]
    rows: Sequence[Row | None]
    sites: Sites
    closings: dict[Entry, int]
    beginning: Beginning
    watched: bool
    last: int


def report_of(
    found: Census,
    *,
    object_limit: int,
    of_program: bool,
    died: bool = False,
    goes_on: bool = False,
    is_look: bool = False,
) -> Report:
    """Group what a snapshot found by line and reason, and find the holders of each group.

    Parameters
    ----------
    found : Census
        What the snapshot found.
    object_limit : int
        How many objects the search for holders reaches at most.
    of_program : bool
        Whether this is about a whole program: then a resource that its variables lead to is no leak
        unless it shows signs of one.
    died : bool
        Whether an exception ended the program: ``sys.last_exc`` is that one.
    goes_on : bool
        Whether the program runs on, so that a few large results may become more.
    is_look : bool
        Whether what retains memory is asked for only if something grew whose holder is known, and
        libraries and cycles are not searched for one or two results of a line.
    """
    records, subjects = found.records, found.subjects
    groups = _grouped(found, _left_over(found))
    if of_program:
        # Leave out the little that libraries make when they are imported: to find its holders the
        # search would have to go through all libraries.
        groups = {line: indices for line, indices in groups.items() if not _is_of_an_import(found, line, indices)}
    views = {index: identities for index in _large(records) if (identities := _pinned_by(found, index))}
    sizes = {identity: nbytes for identities in views.values() for identity, nbytes in identities}
    escapes: dict[Subject, Escape] = {
        subject: escape
        for indices in groups.values()
        for index in indices
        if not isinstance(subject := subjects[index], Entry) and (escape := subject.escape) is not None
    }
    evidence = Evidence(found.beginning, found.last, goes_on=goes_on)
    leaks: list[Leak] = []
    kept: list[Leak] = []
    leftovers: list[Leak] = []
    # For each leak, by ``id``, the indexes of its records.
    places: dict[int, list[int]] = {}
    # For each leak that graphs hold, by ``id``, the tensors that have these graphs.
    graphs: dict[int, dict[int, object]] = {}
    with Holders(
        [[subjects[index] for index in indices] for indices in groups.values()],
        object_limit=object_limit,
        sizes=sizes,
        meets_all=of_program,
        # What a library or a cycle holds of a line is growth only if it becomes more. The newest
        # result is often on its way to a variable.
        few=FEW_RESULTS - 1 if is_look else 0,
    ) as holders:
        left_memory = (
            holders.left_over(_rows_of(found, escapes), evidence.passes) if of_program and escapes else set[Subject]()
        )
        by_reason = [
            group
            for (*_, is_left), indices in groups.items()
            for group in _by_reason(found, indices, holders, views, escapes, left_memory, is_left=is_left)
        ]
        # Groups that graphs hold come first: where one is a leak, the nodes of its graphs do not
        # count again for the tensors that have these graphs.
        carriers: set[int] = set()
        for group in sorted(by_reason, key=lambda group: group.reason != "graph"):
            of_graph = group.reason == "graph"
            with_graphs = holders.roots_of_graphs([subjects[index] for index in group.places]) if of_graph else {}
            judge = partial(
                _Group.leak,
                holders=holders,
                evidence=evidence,
                with_graphs=with_graphs,
                carriers=carriers,
                of_program=of_program,
                died=died,
            )
            for part, leak, is_leak in _judged(group, judge, holders):
                places[id(leak)] = part.places
                graphs[id(leak)] = with_graphs
                if part.is_left:
                    leftovers.append(leak)
                elif of_program and not is_leak:
                    if leak.site is None or not imports_modules(leak.site.file):
                        kept.append(leak)
                else:
                    leaks.append(leak)
                    carriers |= with_graphs.keys()
        of_leaks = [(leak, sure) for leak in kept if (sure := _sureness_by_graphs(leak, leaks, graphs)) is not None]
        for leak, sure in of_leaks:
            leaks.append(replace(leak, sure=sure))
            places[id(leaks[-1])], graphs[id(leaks[-1])] = places[id(leak)], graphs[id(leak)]
        moved = {id(leak) for leak, _ in of_leaks}
        kept = [leak for leak in kept if id(leak) not in moved]
        graph_nbytes = _graph_nbytes_by_leak(found, holders, [*leaks, *kept], graphs, places)
        graphs.clear()
        for rows in (leaks, kept):
            for number, leak in enumerate(rows):
                if id(leak) in graph_nbytes:
                    rows[number] = replace(leak, graph_nbytes=graph_nbytes[id(leak)])
                    places[id(rows[number])] = places[id(leak)]
        has_growth = any(leak.trend is not None and chain_of(leak.holder) is not None for leak in leaks)
        is_asked = of_program and (has_growth or not is_look)
        retainers = _retainers(found, holders, [*leaks, *kept], places, is_look=is_look) if is_asked else ()
    kept, leftovers = apart(leaks, kept, leftovers)
    weights = [1.0 if row is None else row.weight for row in found.rows]
    sampled = any(weight != 1.0 for weight in weights)

    def nbytes_in(rows: Sequence[Leak]) -> int:
        # Each storage counts once. Of a sample the sum of the estimates is taken.
        if sampled:
            return sum(leak.nbytes for leak in rows)
        return nbytes_of(records[index] for leak in rows for index in places[id(leak)])

    nbytes, kept_nbytes = nbytes_in(leaks), nbytes_in(kept)
    leaks += unclosed_scopes(of_program=of_program) if found.watched else []
    for rows in (leaks, kept, leftovers):
        rows.sort(key=_badness)
    return Report(
        settings=Settings(object_limit=object_limit),
        count=sum(leak.count for leak in leaks),
        nbytes=nbytes,
        leaks=tuple(leaks),
        kept=tuple(kept),
        leftovers=tuple(leftovers),
        sites=live_sites(records, weights if sampled else ()),
        unwatched=tuple(PATCHES.unwatched_since(found.beginning.unseen)),
        kept_nbytes=kept_nbytes,
        retainers=retainers,
    )


def _by_reason(
    found: Census,
    indices: Sequence[int],
    holders: Holders,
    views: dict[int, tuple[tuple[Hashable, int], ...]],
    escapes: Mapping[Subject, Escape],
    left_memory: Container[Subject],
    *,
    is_left: bool,
) -> list[_Group]:
    """Return the resources of one line in groups.

    A group has one reason, about the same number of times that views keep more than they use, one
    kind of escape, and is left over or not.
    """
    parts: dict[tuple[Reason, int, Escape | None, bool], list[int]] = {}
    subjects = [found.subjects[index] for index in indices]
    for index, subject, reason in zip(indices, subjects, holders.reasons_of(subjects), strict=True):
        times = _pinned_times(views[index], holders) if index in views else 1.0
        # From three times on the number makes no further group.
        key = reason, min(3, int(times)), escapes.get(subject), is_left or subject in left_memory
        parts.setdefault(key, []).append(index)
    return [
        _Group(found, places, reason, escape, is_gone, views) for (reason, _, escape, is_gone), places in parts.items()
    ]


def _sureness_by_graphs(
    leak: Leak, leaks: Sequence[Leak], graphs: Mapping[int, Mapping[int, object]]
) -> Sureness | None:
    """Return how sure it is that one more line of the graphs of some leaks leaks; None if none is.

    Such as the line of the weights of each step, where that of the inputs leaks.
    """
    if leak.kind != "graph" or leak.count < BIRTHS_AT_LEAST:
        return None
    mine = graphs[id(leak)].keys()
    found = {other.sure for other in leaks if other.kind == "graph" and not mine.isdisjoint(graphs[id(other)])}
    return next((sure for sure in get_args(Sureness) if sure in found), None)


def _graph_nbytes_by_leak(
    found: Census,
    holders: Holders,
    leaks: Sequence[Leak],
    graphs: Mapping[int, dict[int, object]],
    places: Mapping[int, list[int]],
) -> dict[int, int]:
    """Return for leaks, by ``id``, the bytes of their graphs, if these are much more than theirs.

    An operation of a library in C++ may save memory that no line of the program made. Leaks that
    share graphs are one family, and the largest of them stands for all.
    """
    # The tensors that have the graphs, by ``id``, and the leaks of each family.
    families: list[tuple[dict[int, object], list[Leak]]] = []
    for leak in leaks:
        tensors = graphs.get(id(leak))
        if not tensors:
            continue
        related = [family for family in families if not family[0].keys().isdisjoint(tensors)]
        families = [family for family in families if family[0].keys().isdisjoint(tensors)]
        joined = {key: tensor for its_tensors, _ in related for key, tensor in its_tensors.items()} | tensors
        families.append((joined, [*(other for _, its_leaks in related for other in its_leaks), leak]))
    graph_nbytes: dict[int, int] = {}
    for tensors, family_leaks in families:
        known = nbytes_of(found.records[index] for leak in family_leaks for index in places[id(leak)])
        nbytes = holders.nbytes_of_graphs([*tensors.values()])
        if nbytes >= _GRAPH_TIMES * known:
            graph_nbytes[id(max(family_leaks, key=lambda leak: leak.nbytes))] = nbytes
    return graph_nbytes


def _retainers(
    found: Census, holders: Holders, rows: Sequence[Leak], places: dict[int, list[int]], *, is_look: bool
) -> tuple[Retainer, ...]:
    """Return the objects that retain the memory of some leaks, those with the most bytes first."""
    row_of = {index: row for row in rows for index in places[id(row)]}
    pieces = [(storages, index) for index in sorted(row_of) if (storages := _storages_of(found, index))]
    all_retained = holders.retained(pieces, asks_libraries=not is_look)
    # What is retained of each row, by ``id`` of the row.
    by_row = [(retained, *_by_row(retained.pieces, row_of)) for retained in all_retained]
    totals: Counter[int] = Counter()
    for _, _, nbytes_by_row in by_row:
        totals.update(nbytes_by_row)
    retainers: list[Retainer] = []
    for retained, counts, nbytes_by_row in by_row:
        by_site: dict[Site, int] = {}
        for site, site_nbytes in _nbytes_by_site(found, retained.pieces):
            by_site[site] = by_site.get(site, 0) + site_nbytes
        of_rows = [row for row in rows if id(row) in counts]
        growing = [
            (row.trend, counts[id(row)] / len(places[id(row)]), nbytes_by_row[id(row)] / (totals[id(row)] or 1))
            for row in of_rows
            if row.trend is not None and row.trend.over == "passes"
        ]
        known = {row.known for row in of_rows}
        weights = [1.0 if (row := found.rows[index]) is None else row.weight for index, _ in retained.pieces]
        sizes = [nbytes * weight for (_, nbytes), weight in zip(retained.pieces, weights, strict=True)]
        retainers.append(
            Retainer(
                holder=retained.holder,
                type=retained.type,
                length=retained.length,
                count=round(sum(weights)),
                nbytes=round(sum(sizes)),
                sites=tuple(sorted(by_site, key=lambda site: -by_site[site])),
                count_per_pass=sum(trend.count_per_pass * share for trend, share, _ in growing),
                nbytes_per_pass=sum(trend.nbytes_per_pass * share for trend, _, share in growing),
                grown_at=retained.grown_at,
                kinds=tuple(dict.fromkeys(kind for row in of_rows if (kind := row.tensor_kind))),
                pid=os.getpid(),
                known=known.pop() if len(known) == 1 else None,
            )
        )
    return tuple(sorted(retainers, key=lambda row: (-row.nbytes, row.holder)))


def _by_row(pieces: Iterable[tuple[int, int]], row_of: Mapping[int, Leak]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the number and the bytes of some pieces, by ``id`` of the row that they belong to."""
    counts: dict[int, int] = {}
    nbytes_by_row: dict[int, int] = {}
    for index, nbytes in pieces:
        key = id(row_of[index])
        if key in counts:
            counts[key] += 1
            nbytes_by_row[key] += nbytes
        else:
            counts[key], nbytes_by_row[key] = 1, nbytes
    return counts, nbytes_by_row


def _nbytes_by_site(found: Census, pieces: Iterable[tuple[int, int]]) -> Iterable[tuple[Site, int]]:
    # Group by the ``id`` of the lines: there are few, and comparing them is slow.
    sites: dict[int, Site] = {}
    nbytes_by_site: dict[int, int] = {}
    for index, nbytes in pieces:
        site = found.records[index].site
        if site is not None:
            sites[id(site)] = site
            nbytes_by_site[id(site)] = nbytes_by_site.get(id(site), 0) + nbytes
    return zip(sites.values(), nbytes_by_site.values(), strict=True)


def _storages_of(found: Census, index: int) -> tuple[tuple[Hashable, int], ...]:
    """Return the storages of a living resource, or some memory, each with its bytes."""
    record, subject = found.records[index], found.subjects[index]
    if record.state != "alive":
        return ()
    if not isinstance(subject, Entry):
        model = _model_of(subject)
        return ((subject.identity, subject.nbytes),) if model is None else model.storages
    resource = subject()
    return () if resource is None else tuple(subject.kind.storages(resource))


def _rows_of(found: Census, escapes: Container[Subject]) -> dict[UnheldMemory, Row]:
    return {
        subject: row
        for index, subject in enumerate(found.subjects)
        if not isinstance(subject, Entry) and subject in escapes and (row := found.rows[index]) is not None
    }


def _grouped(found: Census, left: set[Entry]) -> dict[_Line, list[int]]:
    """Return the indexes of what is still there, by the fields of `_Line`."""
    # Group by the ``id`` of the lines first: there are few, and comparing them is slow.
    by_identity: dict[tuple[int, State, str, str | None, bool, bool], list[int]] = {}
    for index, (record, subject) in enumerate(zip(found.records, found.subjects, strict=True)):
        if subject() is not None:
            is_view = record.used_nbytes < record.nbytes and record.state == "alive"
            is_left = bool(left) and subject in left
            key = (id(record.site), record.state, record.kind, record.op, is_view, is_left)
            known = by_identity.get(key)
            if known is None:
                by_identity[key] = [index]
            else:
                known.append(index)
    groups: dict[_Line, list[int]] = {}
    for (_, state, kind, op, is_view, is_left), indices in by_identity.items():
        line = _without_versions(found.records[indices[0]].site), state, kind, op, is_view, is_left
        if line in groups:
            groups[line] = sorted([*groups[line], *indices])
        else:
            groups[line] = indices
    return groups


def _without_versions(site: Site | None) -> Site | None:
    """Return a line of generated code without the numbers in the name of its file.

    A program that compiles a text again and again may number the names: ``<rules-7>``. All of these
    are one line.
    """
    if site is None or not site.file.startswith("<") or not _VERSION.search(site.file):
        return site
    return replace(site, file=_VERSION.sub("", site.file))


def _is_of_an_import(found: Census, line: _Line, places: Sequence[int]) -> bool:
    """Return whether a group is the little that a library made when it was imported."""
    site, state, *_ = line
    return (
        site is not None
        and imports_modules(site.file)
        and state == "alive"
        and nbytes_of(found.records[place] for place in places) < WORTH_NBYTES
    )


def _left_over(found: Census) -> set[Entry]:
    """Return the disposed resources that only left-over variables refer to."""
    resources = [
        subject
        for record, subject in zip(found.records, found.subjects, strict=True)
        if record.state == "disposed" and isinstance(subject, Entry)
    ]
    return leftovers_among(resources, [found.closings.get(subject) for subject in resources])


def _large(records: Sequence[Record]) -> list[int]:
    """Return the indexes of records with enough memory to find out how much of it is used."""
    return [index for index, record in enumerate(records) if record.nbytes >= _VIEWED_NBYTES]


def _pinned_by(found: Census, index: int) -> tuple[tuple[Hashable, int], ...]:
    """Return the storages of a record that views may keep alive, each with its bytes."""
    record, subject = found.records[index], found.subjects[index]
    # A mapped file costs no memory: the system drops pages that nobody uses.
    if record.state != "alive" or record.device == MAPPED:
        return ()
    if not isinstance(subject, Entry):
        return () if _model_of(subject) is not None else ((subject.identity, subject.nbytes),)
    resource = subject() if record.is_view else None
    return () if resource is None else tuple(subject.kind.storages(resource))


def _pinned_times(storages: Sequence[tuple[Hashable, int]], holders: Holders) -> float:
    """Return how many times the bytes that are used some storages have; 1 where that is unknown."""
    pinned = sum(nbytes for _, nbytes in storages)
    used = 0
    for identity, nbytes in storages:
        known = holders.used_nbytes(identity)
        used += nbytes if not known else min(known, nbytes)
    return 1.0 if not pinned or not used else pinned / used


@final
@dataclass(frozen=True, slots=True)
class _Group:
    """Resources, or memory, of one line that are there for one reason.

    Attributes
    ----------
    found : Census
        What the snapshot found.
    places : list of int
        The indexes of the group in `found`.
    reason : Reason
        What holds the group.
    escape : Escape or None
        How the group has escaped, if it is memory.
    is_left : bool
        Whether only left-over variables refer to the group.
    views : dict
        By the index of a record, the storages that views may keep alive: see `_pinned_by`.
    may_grow : bool, default True
        False if it is known not to grow.
    """

    found: Census
    places: list[int]
    reason: Reason
    escape: Escape | None
    is_left: bool
    views: dict[int, tuple[tuple[Hashable, int], ...]]
    may_grow: bool = True

    def leak(
        self,
        holders: Holders,
        evidence: Evidence,
        with_graphs: Mapping[int, object],
        *,
        carriers: Container[int],
        of_program: bool,
        died: bool,
    ) -> tuple[Leak, bool]:
        """Return the leak of the group, and whether it is a leak also at the end of a program.

        Parameters
        ----------
        with_graphs : dict
            The tensors whose graphs hold the group, by ``id``.
        carriers : set of int
            Tensors, by ``id``, whose graphs are reported with what they hold: their nodes do not
            count for this group again.
        of_program, died : bool
            See `report_of`.
        """
        records = [self.found.records[index] for index in self.places]
        subjects = [self.found.subjects[index] for index in self.places]
        births = Births([self.found.rows[index] for index in self.places], self.found.sites, self.found.beginning)
        evidence = evidence.of(births)
        oldest = records[0]
        count, nbytes = estimated(records, births.weights())
        model = _model_of(subjects[0])
        is_model, is_added = model is not None, model is not None and model.is_added
        are_apart = partial(holders.are_in_several_tables, subjects)
        trend = None
        if model is not None:
            sizes = [record.nbytes for record in records]
            trend = evidence.trend_of(births, sizes, have_parts=True, are_apart=are_apart)
            trend = _of_models(trend, births.live, records)
            if not is_added:
                trend = evidence.trend_of_wrapped(births, nbytes, model.parts) or trend
            if trend is not None and trend.over == "births" and is_added and not _is_spread(births.numbers(), subjects):
                trend = None
        elif not self.is_left:
            trend = evidence.trend_of(births, [record.nbytes for record in records], are_apart=are_apart)
            if trend is not None and trend.nbytes_per_pass == 0.0:
                # The log counts the bytes of memory that a scope disposed where it was made.
                trend = replace(trend, nbytes_per_pass=trend.count_per_pass * nbytes / count)
        if trend is not None and (
            not self.may_grow or not _accounts_for(trend, count, nbytes) or holders.are_in_a_bounded_deque(subjects)
        ):
            trend = None
        # Small ones say little about who holds the memory.
        typical_nbytes = sum(record.nbytes for record in records) / len(records)
        worth = [
            subject for subject, record in zip(subjects, records, strict=True) if 2 * record.nbytes >= typical_nbytes
        ]
        texts = holders.chains_of(worth)
        chains = [chain_of(text) for text in texts]
        cycle = holders.cycle_of(subjects) if self.reason == "cycle" else None
        # The parameters of models have no graphs.
        is_kept = self.reason in ("held", "suspended") and not is_model
        nodes_nbytes = holders.node_nbytes_of(subjects, carriers) * count if is_kept else 0
        views = [pair for index in self.places for pair in self.views.get(index, ())] if self.views else []
        times = _pinned_times(views, holders)
        is_of_evaluation = self.reason == "graph" and holders.is_of_evaluation(subjects)
        evaluations = len(with_graphs) if is_of_evaluation else 0
        if 0 < evaluations < EVALUATIONS:
            evaluations = holders.evaluations_of([*with_graphs.values()])
        if evaluations >= EVALUATIONS:
            if holders.are_in_a_bounded_deque(subjects, len(with_graphs)):
                evaluations = 0
            elif trend is not None and trend.over == "births":
                # One evaluation of a data set, at the end of an epoch, is no trend.
                trend = None
        verdict = judgement_on(
            Facts(
                oldest=oldest,
                count=count,
                nbytes=nbytes,
                reason=self.reason,
                escape=self.escape,
                is_left=self.is_left,
                pinned_times=times,
                is_replaced=count == 1 and births.made >= _MADE_BY_A_LOOP and births.live <= 1,
                trend=trend,
                trend_is_known=evidence.watched_passes,
                is_bounded=evidence.watched(births),
                generations=len({record.generation for record in records}),
                cycle=cycle,
                is_of_evaluation=is_of_evaluation,
                evaluations=evaluations,
                graph_passes=holders.passes_of(subjects) if self.reason == "held" else 0,
                nodes_nbytes=nodes_nbytes,
                is_in_traceback=any(chain is not None and chain.is_in_traceback for chain in chains),
                program_died=all(
                    chain is not None and chain.origin.kind in (_DYING if died else _IN_FLIGHT) for chain in chains
                ),
                is_model=is_model,
                is_added=is_added,
                is_apart=is_model and _are_apart(births.numbers(), subjects),
                is_collected=gc.isenabled() and 2 * births.live < births.made,
                remedy=holders.remedy_of(subjects),
            )
        )
        unjudged = self._unjudged(verdict, births, evidence, holders, nbytes + nodes_nbytes) if self.may_grow else None
        if (
            verdict.kind == "graph"
            and not verdict.is_leak
            and nbytes >= WORTH_NBYTES
            and self._goes_on(births, evidence, are_apart)
            and not holders.are_in_a_bounded_deque(subjects, len(with_graphs))
        ):
            made = holders.steps_of_graphs([*with_graphs.values()])
            if _stay([step for step, is_spent in made if is_spent]):
                verdict, unjudged = outlived(verdict), None
            elif not evidence.watched_loops and _stay([step for step, _ in made]):
                # The graphs may be of one loss an epoch, after ``backward(retain_graph=True)``.
                unjudged = "growth"
        share = _share_of(records, births.live) if is_model else 1.0
        released_some = unjudged == "growth" and not evidence.released_nothing(births, share)
        graph_nbytes = nodes_nbytes if nodes_nbytes >= _GRAPH_TIMES * nbytes else 0
        if verdict.kind == "graph" and self.reason == "held":
            graph_nbytes = max(nodes_nbytes, holders.graph_nbytes_of(subjects))
        is_asked = verdict.is_leak or unjudged is not None or not of_program
        known = holders.known_of(subjects) if is_asked else None
        used = sum(record.used_nbytes for record in records)
        ages = [record.age_s for record in records if record.age_s is not None]
        return Leak(
            kind=verdict.kind,
            sure=verdict.sure,
            tensor=str(oldest),
            tensor_kind=subjects[0].kind if is_model and not isinstance(subjects[0], Entry) else oldest.kind,
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
            graph_nbytes=graph_nbytes,
            generation=oldest.generation,
            trend=trend,
            holders=texts,
            carriers=holders.carriers_of(subjects) if self.reason == "graph" else (),
            members=() if cycle is None else (cycle.loop,),
            explanation=verdict.explanation if known is None else f"{verdict.what}. {known.what}: {known.remedy}.",
            remedy=verdict.remedy if known is None else known.remedy,
            known=known,
            fingerprint=fingerprint_of(verdict.kind, oldest.kind, oldest.site, oldest.op),
            pid=os.getpid(),
            excerpt=excerpt_of(oldest.site),
            records=tuple(records[:RECORDS_AT_MOST]),
            unjudged=unjudged,
            made=round(births.made * share) if released_some else None,
        ), verdict.is_leak

    def apart_from_what_is_at_work(self, holders: Holders) -> tuple[_Group, _Group] | None:
        """Return the group without a few far larger results that others hold, and these.

        A line that unpacks a batch makes inputs and labels: if the labels are kept, the last inputs
        are there too.
        """
        records, subjects = self.found.records, self.found.subjects
        if len(self.places) < _GROUP_AT_LEAST or _model_of(subjects[self.places[0]]) is not None:
            return None
        much = max(1, _FAR_LARGER * median(records[index].nbytes for index in self.places))
        larger = [index for index in self.places if records[index].nbytes > much]
        if not 0 < len(larger) <= _AT_WORK_AT_MOST * len(self.places):
            return None
        ways = holders.ways_of([subjects[index] for index in self.places if records[index].nbytes <= much])
        at_work = {index for index in larger if ways.isdisjoint(holders.ways_of([subjects[index]]))}
        if not at_work:
            return None
        rest = [index for index in self.places if index not in at_work]
        return replace(self, places=rest), replace(self, places=sorted(at_work), may_grow=False)

    def _unjudged(
        self, verdict: Judgement, births: Births, evidence: Evidence, holders: Holders, nbytes: int
    ) -> Unjudged | None:
        """Return what could not be decided about the group: see `Unjudged`; None if nothing."""
        if self.reason == "unfinished":
            return "holder"
        if verdict.is_leak or self.is_left or nbytes < WORTH_NBYTES:
            return None
        if holders.may_be_pinned and any(self.found.records[index].is_view for index in self.places):
            return "view"
        if self.reason not in _MAY_GROW or len(self.places) < _GROUP_AT_LEAST:
            return None
        if holders.are_in_a_bounded_deque([self.found.subjects[index] for index in self.places]):
            return None
        if evidence.watched_passes and evidence.may_grow(births):
            return "trend"
        # Such as growth that begins late: too short for a trend.
        rises = evidence.watched_passes and evidence.rises(births)
        if evidence.watched_loops and not rises:
            return None
        if not evidence.watched_passes and evidence.were_gathered(
            births, [self.found.records[index].nbytes for index in self.places]
        ):
            return None
        numbers = evidence.numbers(births)
        subjects = [self.found.subjects[index] for index in self.places]
        model = _model_of(subjects[0])
        if model is not None:
            enough = len(numbers) >= MODELS and _are_apart(numbers, subjects)
        else:
            enough = len(numbers) >= EPOCHS or (evidence.goes_on and are_few_and_large(len(numbers), nbytes))
        if evidence.watched_passes and evidence.stopped(births):
            return None
        is_spread = enough and max(numbers) - min(numbers) >= STOPPED * evidence.last
        if evidence.watched_passes and not (is_spread or rises):
            # Growth over steps would have been seen. Too few to be seen is only what stays with
            # each of a few epochs, or with each run of a training.
            return None
        if model is not None and model.is_added:
            return None
        share = 1.0 if model is None else _share_of(numbers, births.live)
        are_apart = partial(holders.are_in_several_tables, subjects)
        return "growth" if self._goes_on(births, evidence, are_apart) and evidence.stays(births, share) else None

    def _goes_on(self, births: Births, evidence: Evidence, are_apart: Callable[[], bool]) -> bool:
        """Return whether a line still made results late in the run, and not in a comprehension.

        A table that was filled once, before other work began, does not grow.
        """
        numbers = evidence.numbers(births)
        return bool(numbers) and max(numbers) > STOPPED * evidence.last and not evidence.is_in_a_row(births, are_apart)


def _judged(
    group: _Group, judge: Callable[[_Group], tuple[Leak, bool]], holders: Holders
) -> Iterator[tuple[_Group, Leak, bool]]:
    """Yield a group with what `judge` returns of it, or two: what is at work does not grow."""
    leak, is_leak = judge(group)
    parts = group.apart_from_what_is_at_work(holders) if is_leak and leak.kind == "growth" else None
    if parts is None:
        yield group, leak, is_leak
        return
    for part in parts:
        yield part, *judge(part)


def _stay(steps: Sequence[float]) -> bool:
    """Return whether the graphs of several steps stay, from an early step on.

    A deque of the last results has graphs of the last steps only.

    Parameters
    ----------
    steps : sequence of float
        When the graphs were made, as shares of the steps of the run, in order.
    """
    return len(steps) >= _OUTLIVED and steps[0] <= STOPPED


def _accounts_for(trend: Trend, count: int, nbytes: int) -> bool:
    """Return whether a group is what grew: its line may have other groups, which grow instead."""
    passes = trend.passes - trend.passes // WARM_UP
    by_count, by_nbytes = trend.count_per_pass * passes, trend.nbytes_per_pass * passes
    return count >= _PART_OF_GROWTH * by_count and (by_count >= 1.0 or nbytes >= _PART_OF_GROWTH * by_nbytes)


def _model_of(subject: Subject) -> ModelFacts | None:
    return subject.model if isinstance(subject, RecordedMemory) else None


def _share_of(models: Sequence[object], live: float) -> float:
    """Return the share of models in the modules that the log counts, which are also in models."""
    return min(1.0, len(models) / live) if live else 1.0


def _of_models(trend: Trend | None, live: float, records: Sequence[Record]) -> Trend | None:
    """Return the growth of models, from that of the modules that the log counts.

    The log counts modules in models too, and has no bytes for any of them.
    """
    if trend is None:
        return None
    share = _share_of(records, live)
    if trend.over == "births":
        made = max(len(records), round(trend.passes * share))
        return replace(
            trend, passes=made, count_per_pass=len(records) / made, nbytes_per_pass=nbytes_of(records) / made
        )
    count_per_pass = trend.count_per_pass * share
    mean = nbytes_of(records) / len(records)
    return replace(
        trend,
        count_per_pass=count_per_pass,
        nbytes_per_pass=count_per_pass * mean,
        series=tuple((number, round(count * share), round(count * share * mean)) for number, count, _ in trend.series),
    )


def _are_apart(numbers: Sequence[int], subjects: Sequence[Subject]) -> bool:
    """Return whether other work was done between any two models.

    Then there are many more births between them than a model has parts.
    """
    parts = _parts_at_most(subjects)
    return all(after - before > _BIRTHS_PER_PART * (parts + 1) for before, after in pairwise(sorted(numbers)))


def _is_spread(numbers: Sequence[int], subjects: Sequence[Subject]) -> bool:
    """Return whether, on average, other work was done between two models."""
    return max(numbers) - min(numbers) >= _BIRTHS_PER_ADDED_PART * (_parts_at_most(subjects) + 1) * len(numbers)


def _parts_at_most(subjects: Sequence[Subject]) -> int:
    return max((model.parts for subject in subjects if (model := _model_of(subject)) is not None), default=0)


def _badness(leak: Leak) -> tuple[int, int, str, int]:
    """Return a key that sorts leaks: the most bytes first, then the highest count, then by line."""
    site = leak.site
    return (
        -leak.nbytes - leak.graph_nbytes,
        -leak.count,
        "" if site is None else site.file,
        0 if site is None else site.line,
    )
