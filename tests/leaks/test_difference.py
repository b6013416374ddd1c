"""What `leak-report diff` finds new, gone, grown and shrunk, and what `merge` keeps.

Both are also tested as laws over any reports.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from disposescope.leaks import Leak, Process, Report
from disposescope.leaks.report.difference import Change, Difference, difference_of
from disposescope.leaks.reporters.difference_text import difference_json_of, difference_text_of
from disposescope.leaks.saved.files import merged
from tests.leaks.example_reports import EVAL, STEP, leak, training_report


def report_of(*leaks: Leak) -> Report:
    nbytes = sum(one.nbytes for one in leaks)
    return replace(training_report(), leaks=leaks, count=sum(one.count for one in leaks), nbytes=nbytes)


def one(fingerprint: str, count: int, nbytes: int, **changes: object) -> Leak:
    return leak(fingerprint=fingerprint, count=count, nbytes=nbytes, used_nbytes=nbytes, **changes)


OLD = report_of(
    one("grows", 3, 3000),
    one("shrinks", 9, 9000),
    one("stays", 1, 10),
    one("goes", 2, 2_000_000, holders=("not found",)),
)
NEW = report_of(
    one("grows", 4, 3000),
    one("grows", 1, 4000, site=replace(STEP, line=40), holders=("module train.b",)),
    one("shrinks", 8, 9000),
    one("stays", 1, 10, site=replace(STEP, line=99)),
    one("comes", 0, 500, tensor=None, kind="native", site=EVAL),
)


def test_leaks_are_matched_by_their_fingerprint() -> None:
    difference = difference_of(OLD, NEW)
    told = {
        name: [(row.leak.fingerprint, row.old_count, row.new_count, row.old_nbytes, row.new_nbytes) for row in rows]
        for name in ("new", "gone", "grown", "shrunk", "same")
        for rows in [getattr(difference, name)]
    }
    assert told == {
        "new": [("comes", 0, 0, 0, 500)],
        "gone": [("goes", 2, 0, 2_000_000, 0)],
        "grown": [("grows", 3, 5, 3000, 7000)],
        "shrunk": [("shrinks", 9, 8, 9000, 9000)],
        "same": [("stays", 1, 1, 10, 10)],
    }
    assert difference.grown[0].leak.holder == "module train.b"


def test_the_difference_as_text() -> None:
    assert difference_text_of(difference_of(OLD, NEW)) == (
        "1 new, 1 gone, 1 grown, 1 shrunk, 1 the same; 2.0 MB → 16.5 kB pinned\n"
        "\n"
        "new:\n"
        "  native (certain): 500 bytes\n"
        "     born at /projects/speech/evaluate.py:23 in score()\n"
        "     held by module train.trainer.history[17]\n"
        "\n"
        "gone:\n"
        "  growth (certain): 2 × torch.Tensor float32 (250000,), 2.0 MB\n"
        "     born at /projects/speech/train.py:31 in Trainer.step()\n"
        "\n"
        "grown:\n"
        "  growth (certain): 3 → 5 × torch.Tensor float32 (250000,), 3.0 kB → 7.0 kB\n"
        "     born at /projects/speech/train.py:40 in Trainer.step()\n"
        "     held by module train.b\n"
        "\n"
        "shrunk:\n"
        "  growth (certain): 9 → 8 × torch.Tensor float32 (250000,), 9.0 kB\n"
        "     born at /projects/speech/train.py:31 in Trainer.step()\n"
        "     held by module train.trainer.history[17]"
    )


def test_equal_reports_differ_in_nothing() -> None:
    text = difference_text_of(difference_of(OLD, OLD))
    assert text == "0 new, 0 gone, 0 grown, 0 shrunk, 4 the same; 2.0 MB pinned"


def test_the_difference_as_json() -> None:
    content = json.loads(difference_json_of(difference_of(OLD, NEW)))
    assert (content["format"], content["version"]) == ("disposescope-leak-difference", 1)
    assert {key: len(rows) for key, rows in content.items() if isinstance(rows, list)} == {
        "new": 1,
        "gone": 1,
        "grown": 1,
        "shrunk": 1,
        "same": 1,
        "undecided": 0,
    }
    assert (content["old_verdict"], content["new_verdict"]) == ("leaks", "leaks")
    [row] = content["grown"]
    assert (row["old_nbytes"], row["new_nbytes"], row["leak"]["fingerprint"]) == (3000, 7000, "grows")


leaks = st.builds(one, st.sampled_from("abcdef"), st.integers(0, 20), st.integers(0, 10_000))
reports = st.lists(leaks, max_size=8).map(lambda rows: report_of(*rows))


def all_changes(difference: Difference) -> list[Change]:
    return [*difference.new, *difference.gone, *difference.grown, *difference.shrunk, *difference.same]


@settings(deadline=None)
@given(reports, reports)
def test_every_leak_is_in_one_change_and_no_byte_is_lost(old: Report, new: Report) -> None:
    changes = all_changes(difference_of(old, new))
    fingerprints = [change.leak.fingerprint for change in changes]
    assert len(fingerprints) == len(set(fingerprints))
    assert set(fingerprints) == {row.fingerprint for row in (*old.leaks, *new.leaks)}
    assert sum(change.old_nbytes for change in changes) == old.nbytes
    assert sum(change.new_nbytes for change in changes) == new.nbytes
    assert sum(change.new_count for change in changes) == new.count


@settings(deadline=None)
@given(reports, reports)
def test_the_difference_the_other_way_round_is_its_mirror(old: Report, new: Report) -> None:
    there, back = difference_of(old, new), difference_of(new, old)
    for name, mirrored in (("new", "gone"), ("grown", "shrunk"), ("same", "same")):
        assert told(getattr(there, name)) == {
            fingerprint: (after, before) for fingerprint, (before, after) in told(getattr(back, mirrored)).items()
        }


def told(changes: tuple[Change, ...]) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    return {row.leak.fingerprint: ((row.old_count, row.old_nbytes), (row.new_count, row.new_nbytes)) for row in changes}


@settings(deadline=None)
@given(st.lists(reports, min_size=1, max_size=4))
def test_merged_reports_keep_every_leak_s_count_and_bytes_in_any_order(given_reports: list[Report]) -> None:
    rows = [of_process(report, pid) for pid, report in enumerate(given_reports, 1)]
    whole = merged(rows)
    assert whole.nbytes == sum(report.nbytes for report in rows)
    assert sums(whole) == sum((sums(report) for report in rows), Counter())
    assert sums(merged(rows[::-1])) == sums(whole)
    assert [process.pid for process in whole.processes] == list(range(1, len(rows) + 1))
    assert merged([*rows, rows[0]]) == whole
    assert not difference_of(whole, merged(rows[::-1])).grown


def of_process(report: Report, pid: int) -> Report:
    return replace(
        report,
        program=replace(report.program, pid=pid),
        leaks=tuple(replace(row, pid=pid) for row in report.leaks),
        processes=(Process(pid, None, "main", "exit", 0, 0),),
    )


def sums(report: Report) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for row in report.leaks:
        found[row.fingerprint, "count"] += row.count
        found[row.fingerprint, "nbytes"] += row.nbytes
    return +found
