"""Reports of several processes become one, and nothing is counted twice or lost."""

import os
from dataclasses import replace

import pytest

import disposescope as ds
from disposescope.leaks.report.leaks import Trend
from disposescope.leaks.report.report import Process, Report, UnusedSuppression
from disposescope.leaks.report.retainer import Retainer
from disposescope.leaks.saved.files import merged

KEPT: list[object] = []


@pytest.fixture
def report() -> Report:
    with ds.LeakDetector() as detector:
        KEPT.append(ds.zeros((1000, 10))[:1])
        made = detector.report(object_limit=10**8)
    KEPT.clear()
    assert [(leak.kind, leak.count, leak.nbytes) for leak in made.leaks] == [("view", 1, 80_000)]
    return made


def of_worker(report: Report, pid: int) -> Report:
    main = os.getpid()
    return replace(
        report,
        program=replace(report.program, pid=pid),
        leaks=tuple(replace(leak, pid=pid) for leak in report.leaks),
        processes=(Process(pid, main, "worker", "exit", 0, 1000 * pid),),
    )


def test_the_leaks_of_workers_are_reported_once_and_beside_those_of_the_main_process(report: Report) -> None:
    whole = merged([report, of_worker(report, 7), of_worker(report, 8)])
    assert [(leak.pid, leak.count, leak.nbytes) for leak in whole.leaks] == [(7, 2, 160_000), (os.getpid(), 1, 80_000)]
    assert (whole.count, whole.nbytes) == (3, 240_000)
    assert [len(leak.records) for leak in whole.leaks] == [2, 1]
    assert [(process.pid, process.role) for process in whole.processes] == [
        (os.getpid(), "main"),
        (7, "worker"),
        (8, "worker"),
    ]
    assert whole.program == report.program
    assert [(site.count, site.nbytes) for site in whole.sites] == [
        (3 * site.count, 3 * site.nbytes) for site in report.sites
    ]


def living(report: Report, began_at: str | None, ended_at: str | None) -> Report:
    [process] = report.processes
    return replace(report, processes=(replace(process, began_at=began_at, ended_at=ended_at),))


def test_workers_that_took_the_place_of_others_are_not_added_to_them(report: Report) -> None:
    whole = merged(
        [
            living(report, "2026-01-01T09:00:00Z", None),
            living(of_worker(report, 7), "2026-01-01T10:00:00Z", "2026-01-01T10:01:00Z"),
            living(of_worker(report, 8), "2026-01-01T10:00:01Z", "2026-01-01T10:01:00Z"),
            # The next epoch.
            living(of_worker(report, 9), "2026-01-01T10:01:00Z", "2026-01-01T10:02:00Z"),
            living(of_worker(report, 10), "2026-01-01T10:01:01Z", None),
            # After it.
            living(of_worker(report, 11), "2026-01-01T10:02:00Z", "2026-01-01T10:03:00Z"),
        ]
    )
    assert [(leak.pid, leak.count, leak.nbytes) for leak in whole.leaks] == [(7, 2, 160_000), (os.getpid(), 1, 80_000)]
    assert (whole.count, whole.nbytes) == (3, 240_000)
    assert len(whole.processes) == 6
    [site] = [site for site in report.sites if site.nbytes == 80_000]
    [together] = [row for row in whole.sites if row.site == site.site and row.kind == site.kind]
    assert (together.count, together.births) == (3 * site.count, 6 * site.births)


def test_what_a_holder_retains_is_that_of_all_workers(report: Report) -> None:
    [leak] = report.leaks
    assert leak.site is not None
    row = Retainer("module __main__.seen", "list", 1, 1, 80_000, (leak.site,), 1.0, 80_000.0, None, ("Tensor",), 0)

    def retaining(part: Report) -> Report:
        return replace(part, retainers=(replace(row, pid=part.program.pid),))

    whole = merged([retaining(report), retaining(of_worker(report, 7)), retaining(of_worker(report, 8))])
    told = [(row.pid, row.length, row.count, row.nbytes, row.count_per_pass) for row in whole.retainers]
    assert told == [(7, None, 2, 160_000, 1.0), (os.getpid(), 1, 1, 80_000, 1.0)]


def test_what_the_line_made_in_all_is_that_of_all_workers(report: Report) -> None:
    trend = Trend(3, 1.0, 80_000.0, 1, 1.0, (), over="births")

    def grown(pid: int) -> Report:
        worker = of_worker(report, pid)
        return replace(worker, leaks=tuple(replace(leak, trend=trend, graph_nbytes=5) for leak in worker.leaks))

    kept = replace(of_worker(report, 9), leaks=tuple(replace(leak, made=7) for leak in of_worker(report, 9).leaks))
    [leak] = merged([grown(7), grown(8), kept]).leaks
    assert leak.trend is not None
    assert (leak.count, leak.trend.passes, leak.made, leak.graph_nbytes) == (3, 3 + 3 + 7, 1 + 1 + 7, 10)


def test_a_report_that_is_given_twice_counts_once(report: Report) -> None:
    assert merged([report, report]) == report
    assert merged([report]) is report
    worker = of_worker(report, 7)
    assert merged([report, worker, worker]) == merged([report, worker])


def of_rank(report: Report, rank: int | None, pid: int = 7) -> Report:
    """Return the report of a program that a launcher started on a machine of its own.

    Process ids repeat from machine to machine.
    """
    started = f"2026-11-24T00:00:0{rank or 0}Z"
    return replace(
        report,
        program=replace(report.program, pid=pid, started_at=started),
        leaks=tuple(replace(leak, pid=pid) for leak in report.leaks),
        processes=(Process(pid, None, "main", "exit", 0, 1000, rank),),
    )


def test_each_leak_says_of_which_rank_it_is(report: Report) -> None:
    small = replace(report, leaks=(), count=0, nbytes=0)
    whole = merged([of_rank(small, 0), of_rank(report, 1), of_rank(report, 2)])
    assert [(leak.rank, leak.count, leak.nbytes) for leak in whole.leaks] == [(1, 1, 80_000), (2, 1, 80_000)]
    assert [(process.rank, process.pid) for process in whole.processes] == [(0, 7), (1, 7), (2, 7)]
    assert "  1. view (likely) on rank 1: 1 × Tensor float64 (1, 10), 80.0 kB\n" in str(whole)
    assert "  2. view (likely) on rank 2: 1 × Tensor float64 (1, 10), 80.0 kB\n" in str(whole)
    # Of two machines with two ranks each.
    nodes = [
        merged([of_rank(report, rank, pid) for rank, pid in ranks]) for ranks in ([(0, 7), (1, 8)], [(2, 7), (3, 8)])
    ]
    assert [leak.rank for leak in merged(nodes).leaks] == [0, 1, 2, 3]


def test_ranks_that_one_launcher_started_are_not_added_up(report: Report) -> None:
    ranks = [
        replace(of_rank(report, rank, 7 + rank), processes=(Process(7 + rank, 1, "worker", "exit", 0, 1000, rank),))
        for rank in range(2)
    ]
    assert [(leak.rank, leak.count) for leak in merged([report, *ranks]).leaks] == [(0, 1), (1, 1), (None, 1)]


def test_programs_of_several_machines_with_one_process_id_are_not_added_up(report: Report) -> None:
    second = replace(of_rank(report, None), program=replace(report.program, pid=7, started_at="2026-11-24T00:00:09Z"))
    assert [leak.count for leak in merged([of_rank(report, None), second]).leaks] == [1, 1]


@pytest.mark.parametrize(("value", "rank"), [("3", 3), ("", None), ("first", None), (None, None)])
def test_a_process_knows_the_rank_that_its_launcher_gave_it(
    value: str | None, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", value)
    [process] = Report().processes
    assert process.rank == rank


def test_a_suppression_is_unused_where_no_process_used_it(report: Report) -> None:
    first, second = (UnusedSuppression(".leak-report.toml", index, "known") for index in range(2))
    main = replace(report, unused_suppressions=(first, second))
    worker = replace(of_worker(report, 7), unused_suppressions=(second,))
    assert merged([main, worker]).unused_suppressions == (second,)


def test_nothing_is_no_report() -> None:
    with pytest.raises(ValueError, match="no report"):
        merged([])
