"""Timelines of several processes become one bounded timeline, by one clock, each row with its
process.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from disposescope.leaks import ProgramFacts, Report
from disposescope.leaks.report.report import text_of
from disposescope.leaks.report.timeline import AT_MOST, Band, Pass, Sample, Timeline
from disposescope.leaks.reporters.json_report import json_of, report_from_json
from disposescope.leaks.saved.files import merged, timelines_together
from tests.leaks.example_reports import training_report


def report_of(pid: int, started_at: str, samples: int, step_s: float = 1.0) -> Report:
    line = Timeline(
        tuple(Sample(index * step_s, pid, {"cpu:0": index}, 0) for index in range(samples)),
        (Pass(0.25, 1, "step"),),
        (Band("step", 0.0, 0.25, 0, "MainThread"), Band("epoch", 0.0, None, 0, "MainThread")),
    )
    return Report(program=replace(training_report().program, pid=pid, started_at=started_at), timeline=line)


START = "2026-11-21T04:00:00Z"


def test_rows_keep_their_process_and_are_put_on_the_clock_of_the_first() -> None:
    later = report_of(2, "2026-11-21T04:00:00.500Z", 2)
    line = merged([report_of(1, START, 2), later]).timeline
    assert [(sample.t_s, sample.pid) for sample in line.samples] == [(0.0, 1), (0.5, 2), (1.0, 1), (1.5, 2)]
    assert [(row.t_s, row.pid) for row in line.passes] == [(0.25, 1), (0.75, 2)]
    assert [(band.name, band.from_s, band.to_s, band.pid) for band in line.bands] == [
        ("step", 0.0, 0.25, 1),
        ("epoch", 0.0, None, 1),
        ("step", 0.5, 0.75, 2),
        ("epoch", 0.5, None, 2),
    ]


def test_what_was_merged_before_keeps_its_processes() -> None:
    inner = merged([report_of(2, START, 1), report_of(3, START, 1)])
    line = merged([report_of(1, START, 1), inner]).timeline
    assert [sample.pid for sample in line.samples] == [1, 2, 3]


def test_half_of_what_is_kept_is_the_first_process_s_and_the_last_rows_are_kept() -> None:
    reports = [report_of(pid, START, AT_MOST) for pid in range(1, 6)]
    samples = timelines_together(reports).samples
    counts = {pid: sum(sample.pid == pid for sample in samples) for pid in range(1, 6)}
    assert counts == {1: AT_MOST // 2, **dict.fromkeys(range(2, 6), AT_MOST // 8)}
    for pid in counts:
        times = [sample.t_s for sample in samples if sample.pid == pid]
        assert times[-1] == AT_MOST - 1
        assert max(after - before for before, after in pairwise(times)) <= AT_MOST / counts[pid] + 1


def test_the_first_process_has_what_others_leave() -> None:
    line = timelines_together([report_of(1, START, AT_MOST), report_of(2, START, 10)])
    assert [sum(sample.pid == pid for sample in line.samples) for pid in (1, 2)] == [AT_MOST - 10, 10]


@pytest.mark.parametrize("processes", [3, AT_MOST + 10])
def test_there_are_never_more_than_of_one_process(processes: int) -> None:
    line = timelines_together([report_of(pid, START, 3) for pid in range(1, processes + 1)])
    assert max(len(line.samples), len(line.passes), len(line.bands)) <= AT_MOST


def test_a_start_that_cannot_be_read_is_that_of_the_first() -> None:
    line = timelines_together([report_of(1, START, 1), report_of(2, "a while ago", 1)])
    assert [sample.t_s for sample in line.samples] == [0.0, 0.0]


def test_a_merged_time_line_is_written_and_read_and_the_text_is_of_the_first() -> None:
    main = training_report()
    other = report_of(2, main.program.started_at, 1, 1.0)
    whole = merged([main, other])
    assert report_from_json(json_of(whole)) == whole
    assert text_of(whole).count("memory at the end") == 1
    last = main.timeline.samples[-1].rss_nbytes
    assert f"memory at the end: {last / 1e9:.2f} GB" in text_of(whole) or f"{last / 1e6:.1f} MB" in text_of(whole)


def test_a_report_from_before_time_lines_had_processes_is_read() -> None:
    text = json_of(report_of(1, START, 1)).replace('"pid": null', '"other": null')
    assert report_from_json(text).timeline.samples[0].pid is None


def test_reports_have_the_start_of_a_program_to_the_millisecond() -> None:
    assert ProgramFacts is type(Report().program)
    assert Report().program.started_at[-5] == "."
