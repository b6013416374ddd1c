"""Reports of several processes become one, and nothing is counted twice or lost."""

import os
from dataclasses import replace

import pytest

import disposescope as ds
from disposescope.leaks.report.report import Process, Report, UnusedSuppression
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


def test_a_report_that_is_given_twice_counts_once(report: Report) -> None:
    assert merged([report, report]) == report
    assert merged([report]) is report
    worker = of_worker(report, 7)
    assert merged([report, worker, worker]) == merged([report, worker])


def test_a_suppression_is_unused_where_no_process_used_it(report: Report) -> None:
    first, second = (UnusedSuppression(".leak-report.toml", index, "known") for index in range(2))
    main = replace(report, unused_suppressions=(first, second))
    worker = replace(of_worker(report, 7), unused_suppressions=(second,))
    assert merged([main, worker]).unused_suppressions == (second,)


def test_nothing_is_no_report() -> None:
    with pytest.raises(ValueError, match="no report"):
        merged([])
