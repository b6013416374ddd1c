"""Write a report for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from ..report.leaks import Leak
from ..report.report import Report
from ..report.timeline import Band, Pass, Sample, Timeline

__all__ = [
    "perfetto_of",
]

Event = dict[str, object]
"""An event of the format. Times are in microseconds."""

_LEAKS_AT_MOST: Final = 200
"""So many leaks are shown, the worst ones."""


def perfetto_of(report: Report) -> str:
    """Return memory, scopes and passes over time in the trace event format, as JSON.

    Memory is shown as counters, scopes as slices of their threads, passes as instants, and each of
    the worst leaks as an asynchronous slice from its first birth to the end. The slices of a track
    must nest. If scopes of one thread overlap without nesting, as those of asyncio tasks do, the
    later one is on a further track of the thread. The format:
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    main_pid = report.program.pid
    end_us = _end_us(report)
    events: list[Event] = []
    timelines = _by_process(report)
    for pid, timeline in timelines.items():
        leaks = report.leaks if len(timelines) == 1 else [leak for leak in report.leaks if leak.pid == pid]
        of_timeline = (*_counters(timeline), *_growth(leaks, timeline), *_passes(timeline))
        events += [{**event, "pid": pid} for event in of_timeline]
        if pid == main_pid:
            events += [{**event, "pid": main_pid} for event in _leaks(report, end_us)]
        events += [{**event, "pid": pid} for event in _scopes(timeline.bands, end_us)]
    # A process may have begun before the main one, and times must not be negative.
    earliest = min((ts for event in events if isinstance(ts := event.get("ts"), int)), default=0)
    if earliest < 0:
        for event in events:
            if isinstance(ts := event.get("ts"), int):
                event["ts"] = ts - earliest
    events = [*_processes(report), *events]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": _about(report)})


def _by_process(report: Report) -> dict[int, Timeline]:
    """Return the timeline of each process, that of the report first."""
    own = report.program.pid
    line = report.timeline
    rows: list[Sample | Pass | Band] = [*line.samples, *line.passes, *line.bands]
    pids = dict.fromkeys([own, *(own if row.pid is None else row.pid for row in rows)])
    if len(pids) == 1:
        return {own: line}
    return {
        pid: Timeline(
            tuple(row for row in line.samples if row.pid == pid),
            tuple(row for row in line.passes if row.pid == pid),
            tuple(row for row in line.bands if row.pid == pid),
        )
        for pid in pids
    }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _end_us(report: Report) -> int:
    """Return the last time in a report."""
    timeline = report.timeline
    moments = [report.program.duration_s, *(sample.t_s for sample in timeline.samples)]
    moments += [band.from_s if band.to_s is None else band.to_s for band in timeline.bands]
    return max(map(_us, moments))


def _about(report: Report) -> dict[str, object]:
    program = report.program
    return {
        "argv": list(program.argv),
        "started_at": program.started_at,
        "leaks": report.count,
        "nbytes": report.nbytes,
    }


def _processes(report: Report) -> Iterator[Event]:
    for process in report.processes:
        of_rank = "" if process.rank is None else f" of rank {process.rank}"
        name = f"{process.role} {process.pid}{of_rank}"
        yield {"ph": "M", "name": "process_name", "pid": process.pid, "args": {"name": name}}


def _counters(timeline: Timeline) -> Iterator[Event]:
    for sample in timeline.samples:
        moment = {"ph": "C", "ts": _us(sample.t_s)}
        yield {**moment, "name": "resident memory", "args": {"bytes": sample.rss_nbytes}}
        yield {**moment, "name": "live bytes", "args": dict(sample.live_nbytes)}
        yield {**moment, "name": "cached bytes", "args": {"bytes": sample.cached_nbytes}}


def _growth(leaks: Iterable[Leak], timeline: Timeline) -> Iterator[Event]:
    """Yield the live bytes of each line that grows, at the ends of the passes of its loop.

    A trend does not name the loop: it is the only one that has as many passes.
    """
    passes = timeline.passes
    last_index = Counter[str]()
    for row in passes:
        last_index[row.name] = max(last_index[row.name], row.index)
    for leak in leaks:
        if leak.trend is None or not leak.trend.series:
            continue
        last_pass, _, _ = leak.trend.series[-1]
        names = [name for name, index in last_index.items() if index == last_pass]
        if len(names) != 1:
            continue
        times_us = {row.index: _us(row.t_s) for row in passes if row.name == names[0]}
        for index, _, nbytes in leak.trend.series:
            if index in times_us:
                yield {"ph": "C", "name": f"growth: {_title(leak)}", "ts": times_us[index], "args": {"bytes": nbytes}}


def _passes(timeline: Timeline) -> Iterator[Event]:
    for row in timeline.passes:
        name = f"{row.name} {row.index}".strip()
        yield {"ph": "i", "s": "p", "cat": "pass", "name": name, "ts": _us(row.t_s), "tid": 0}


def _leaks(report: Report, end_us: int) -> Iterator[Event]:
    for number, leak in enumerate(report.leaks[:_LEAKS_AT_MOST]):
        if leak.oldest_age_s is None:
            continue
        common = {"cat": "leak", "name": f"{leak.kind}: {_title(leak)}", "id": number, "tid": 0}
        arguments = {
            "bytes": leak.nbytes,
            "count": leak.count,
            "sure": leak.sure,
            "tensor": leak.tensor,
            "held by": leak.holder,
            "explanation": leak.explanation,
        }
        yield {**common, "ph": "b", "ts": max(0, _us(report.program.duration_s - leak.oldest_age_s)), "args": arguments}
        yield {**common, "ph": "e", "ts": end_us}


def _title(leak: Leak) -> str:
    return "unknown site" if leak.site is None else str(leak.site)


def _scopes(bands: Iterable[Band], end_us: int) -> Iterator[Event]:
    # For each thread, its tracks: see `_track_for`.
    tracks: dict[str, list[list[int]]] = {}
    # The thread id of the format for each track of a thread.
    numbers: dict[tuple[str, int], int] = {}
    slices = [(_us(band.from_s), end_us if band.to_s is None else _us(band.to_s), band) for band in bands]
    for start, stop, band in sorted(slices, key=lambda row: (row[0], -row[1], row[2].depth)):
        track = _track_for(start, stop, tracks.setdefault(band.thread, []))
        tid = numbers.setdefault((band.thread, track), len(numbers) + 1)
        name = band.name or "scope without a name"
        arguments = {"depth": band.depth, "closed": band.to_s is not None}
        yield {"ph": "X", "cat": "scope", "name": name, "ts": start, "dur": stop - start, "tid": tid, "args": arguments}
    for (thread, track), tid in numbers.items():
        name = thread if track == 0 else f"{thread} ({track + 1})"
        yield {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "tid": tid, "args": {"sort_index": tid}}


def _track_for(start: int, stop: int, tracks: list[list[int]]) -> int:
    """Return the number of the first track in which a slice nests, and add the slice to it.

    A track is the list of the ends of its open slices. A new one is added if there is none.
    """
    for number, ends in enumerate(tracks):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or stop <= ends[-1]:
            ends.append(stop)
            return number
    tracks.append([stop])
    return len(tracks) - 1
