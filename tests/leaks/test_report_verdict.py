"""A report never says "no leaks" of a run that it could not judge."""

import atexit
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import disposescope as ds
from disposescope.leaks import Leak, LeakDetector, Report, Site, assert_no_leaks
from disposescope.leaks.commands.parser import main
from disposescope.leaks.report.difference import difference_of
from disposescope.leaks.report.report import apart, of_kinds, text_of, with_freed, without_growth_of_graphs
from disposescope.leaks.reporters.html_page import html_of, packed
from disposescope.leaks.reporters.json_report import json_of, report_from_json
from disposescope.leaks.running.inventory import AFTER_EXIT, Inventory
from disposescope.leaks.saved.files import merged
from disposescope.scopes.base.errors import LeakWarning
from disposescope.scopes.base.process import PATCHES, Patch

from .example_reports import leak
from .test_commands import COMMANDS, environment, program, report

pytestmark = pytest.mark.unmeasured

BOX: dict[str, Any] = {}
ADVICE = "(mark steps with dispose_scope or detector.mark() to know whether it grows)"
HISTORY = "import numpy as np\nhistory = []\nfor _ in range(20):\n    history.append(np.zeros(10_000))\n"


@pytest.fixture(autouse=True)
def _empty_box() -> Any:
    yield
    BOX.clear()


def reported(work: Callable[[LeakDetector], object], **options: Any) -> Report:
    with LeakDetector() as detector:
        work(detector)
        return detector.report(of_program=True, **options)


def held(_detector: LeakDetector, count: int = 8) -> None:
    for index in range(count):
        BOX[f"key {index}"] = np.zeros(10_000)


def clean(_detector: LeakDetector) -> None:
    float(np.zeros(10_000).sum())


def suspected(_detector: LeakDetector) -> None:
    for index in range(5):
        with ds.dispose_scope() as scope:
            BOX[f"key {index}"] = scope.move_to_outer(ds.zeros(10_000))


def leaking(_detector: LeakDetector) -> None:
    BOX["preview"] = ds.zeros(1_000_000)[:5]


# ---------------------------------------------------------------------- exit functions


class Run:
    pass


def saved(array: Any) -> None:
    BOX["later"] = array[:2500] + 1


def test_what_exit_functions_hold_and_free_stays_in_the_report() -> None:
    with LeakDetector() as detector:
        run = Run()
        ending = weakref.finalize(run, saved, np.ones(5000))
        line = sys._getframe().f_lineno - 1
        BOX["kept"] = np.ones(3000)
        inventory = Inventory(lambda: detector.report(of_program=True))
        ending()
        inventory.go_on(AFTER_EXIT)
        made = inventory.report
    assert {(row.site.line - line, row.nbytes, row.freed) for row in made.kept if row.site is not None} == {
        (0, 40_000, "by exit functions"),
        (2, 24_000, None),
        (saved.__code__.co_firstlineno + 1 - line, 20_000, None),
    }
    assert made.kept_nbytes == 84_000
    assert made.verdict == "clean"
    assert f":{line}" in str(made)
    assert "freed by exit functions, held by module weakref.finalize._registry[<finalize>].args[0]" in str(made)
    assert [row.freed for row in made.retainers if "finalize" in row.holder] == ["by exit functions"]


# ---------------------------------------------------------------------- the four words


@pytest.mark.parametrize(
    ("work", "verdict", "begins"),
    [
        (clean, "clean", "no leaks"),
        (held, "undecided", "no leak found; 640.0 kB alive in the end: 8 × "),
        (suspected, "suspects", "1 suspect, 5 tensors, 400.0 kB"),
        (leaking, "leaks", "1 leak, 1 tensor, 8.0 MB"),
    ],
)
def test_the_verdict_is_one_of_four_words(work: Callable[[LeakDetector], None], verdict: str, begins: str) -> None:
    made = reported(work)
    assert made.verdict == verdict
    assert text_of(made).startswith(begins)
    content = json.loads(json_of(made))
    assert (content["verdict"], content["undecided"]) == (verdict, list(made.undecided))
    assert report_from_json(json_of(made)).verdict == verdict
    assert packed(made)["verdict"] == verdict
    assert html_of(made)


def test_what_grows_over_passes_or_not_is_judged() -> None:
    def bounded(detector: LeakDetector) -> None:
        for step in range(20):
            BOX[f"slot {step % 4}"] = np.full(10_000, step)
            detector.mark("step")

    made = reported(bounded)
    assert (made.verdict, made.undecided) == ("clean", ())
    assert text_of(made).startswith("no leaks; 320.0 kB alive in the end: 4 × ")


def test_a_table_that_was_filled_before_the_program_went_on_is_judged() -> None:
    def table(_detector: LeakDetector) -> None:
        BOX["table"] = [np.zeros(10_000) for _ in range(50)]
        for _ in range(200):
            float(np.ones(10).sum())

    assert reported(table).verdict == "clean"


def test_a_line_of_which_arrays_were_released_is_judged() -> None:
    def cache(_detector: LeakDetector) -> None:
        for index in range(50):
            BOX[f"slot {index % 4}"] = np.full(10_000, index)

    assert reported(cache).verdict == "clean"


@pytest.mark.long
def test_what_nothing_is_found_to_hold_is_undecided_where_it_may_grow() -> None:
    def registered(_detector: LeakDetector) -> None:
        for _ in range(20):
            atexit.register(saved, np.zeros(10_000))

    try:
        made = reported(registered)
    finally:
        atexit.unregister(saved)
    assert [leak.holder[:9] for leak in made.kept] == ["not found"]
    assert made.verdict == "undecided"


# ---------------------------------------------------------------------- the headline


def test_the_headline_of_a_run_without_leaks_says_what_is_held_and_how_to_know_more(tmp_path: Path) -> None:
    done = report(tmp_path, "run", program(tmp_path, HISTORY))
    assert done.stderr.splitlines()[0] == (
        f"leak-report: no leak found; 1.6 MB alive in the end: 20 × program.py:4 held by history, none ever released "
        f"{ADVICE}"
    )
    assert done.stderr.count("program.py:4") == 2


def test_the_headline_lists_no_rows_under_a_kilobyte() -> None:
    code = "BOX['large'] = np.ones(1000)\nBOX['small'] = np.ones(100)\nBOX['smaller'] = np.ones(99)\n"

    def run(_detector: LeakDetector) -> None:
        exec(compile(code, "program.py", "exec"), {"BOX": BOX, "np": np})

    headline = text_of(reported(run)).splitlines()[0]
    assert "8.0 kB: 1 × program.py:1 held by" in headline
    assert "program.py:2" not in headline
    assert headline.endswith(" and 2 smaller lines")


def test_a_line_stands_in_one_list() -> None:
    def both(_detector: LeakDetector) -> None:
        for index in range(4):
            with ds.dispose_scope() as scope:
                made = scope.move_to_outer(ds.zeros(200_000))
                BOX[f"key {index}"] = made[:5] if index else made
                del made

    made = reported(both)
    lines = [{leak.site for leak in rows} for rows in (made.leaks, made.kept, made.leftovers)]
    assert not lines[0] & lines[1]
    assert not lines[0] & lines[2]
    assert not lines[1] & lines[2]
    part = reported(held, object_limit=1)
    [site] = {leak.site for leak in part.kept}
    assert text_of(part).count("no leak, alive") == 0, site


LINES = [Site("train.py", line, "step") for line in range(5)]
ROWS = st.lists(
    st.builds(
        lambda site, pid, count, nbytes: replace(leak(), site=site, pid=pid, count=count, nbytes=nbytes),
        st.sampled_from([*LINES, None]),
        st.integers(1, 2),
        st.integers(1, 100),
        st.integers(0, 10**9),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(ROWS, ROWS, ROWS, ROWS)
def test_a_line_is_never_in_two_lists_and_sums_are_those_of_the_rows(
    leaks: list[Leak], kept: list[Leak], leftovers: list[Leak], freed: list[Leak]
) -> None:
    told_kept, told_leftovers = apart(leaks, kept, leftovers)
    before = Report(
        count=sum(row.count for row in leaks),
        nbytes=sum(row.nbytes for row in leaks),
        leaks=tuple(leaks),
        kept=tuple(told_kept),
        kept_nbytes=sum(row.nbytes for row in told_kept),
        leftovers=tuple(told_leftovers),
    )
    made = with_freed(before, [replace(row, freed="when main() returned") for row in freed], [])
    lists = [{(row.site, row.pid) for row in rows if row.site} for rows in (made.leaks, made.kept, made.leftovers)]
    assert not lists[0] & lists[1]
    assert not lists[0] & lists[2]
    assert not lists[1] & lists[2]
    assert len(made.leaks) == len(leaks) + len(freed)
    assert made.count == sum(row.count for row in made.leaks)
    assert made.nbytes == sum(row.nbytes for row in made.leaks)
    assert made.kept_nbytes == sum(row.nbytes for row in made.kept)


# ---------------------------------------------------------------------- what a limit leaves open


def test_what_a_limit_left_open_is_undecided_and_the_text_names_the_option() -> None:
    made = reported(held, object_limit=1)
    assert made.verdict == "undecided"
    assert {leak.unjudged for leak in made.kept} == {"holder"}
    text = text_of(made)
    assert "who holds 8 × " in text
    assert (
        "is not known: the search ended at 1 objects; --object-limit N, or object_limit= of report(), lifts it" in text
    )
    assert "undecided, alive in the end:" in text
    assert "no leak, alive" not in text


def test_what_is_open_of_a_killed_process_is_not_said_to_be_lifted_by_the_option() -> None:
    kept: list[object] = []
    with LeakDetector() as detector:
        kept.append(ds.zeros(1000))
        report = detector.report(of_program=True)
    [leak] = report.kept
    killed = replace(leak, pid=4712, unjudged="holder")
    process = replace(report.processes[0], pid=4712, role="worker", ended="killed")
    [text] = replace(report, kept=(killed,), processes=(*report.processes, process)).undecided
    assert text.startswith("who holds 1 × ")
    assert text.endswith("is not known: its process was killed, and the search before ended at 20,000 objects")


def test_a_view_that_could_not_be_judged_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    BOX["clutter"] = [[] for _ in range(50_000)]

    def viewed(_detector: LeakDetector) -> None:
        BOX["preview"] = ds.zeros(1_000_000)[:5]

    monkeypatch.setattr("disposescope.leaks.holders.search._EXTRA_OBJECTS", 0)
    assert reported(viewed).verdict == "leaks"
    made = reported(viewed, object_limit=20_000)
    assert made.verdict == "undecided"
    assert any("whether a view pins 1 × " in line or "who holds 1 × " in line for line in made.undecided)


# ---------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (HISTORY, 4),
        ("print(1)\n", 0),
        ("import numpy as np\nkept = np.zeros(10**6)[:5]\n", 3),
        ("raise SystemExit(5)\n", 5),
    ],
)
def test_run_fail_on_has_a_status_of_its_own_for_undecided(tmp_path: Path, code: str, status: int) -> None:
    name = program(tmp_path, code)
    assert report(tmp_path, "run", "--fail-on", "any", name).returncode == status
    assert report(tmp_path, "run", name).returncode == (5 if status == 5 else 0)


def test_fail_on_other_kinds_than_growth_does_not_ask_for_passes(tmp_path: Path) -> None:
    assert report(tmp_path, "run", "--fail-on", "view", program(tmp_path, HISTORY)).returncode == 0


def test_check_and_diff_have_a_status_of_their_own_for_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, work in (("open", held), ("clean", clean), ("leaks", leaking)):
        (tmp_path / f"{name}.json").write_text(json_of(reported(work)))
        BOX.clear()
    assert [main(["check", f"{name}.json"]) for name in ("open", "clean", "leaks")] == [4, 0, 3]
    out = capsys.readouterr().out
    assert "no leak found, and not everything could be judged\nundecided: 8 × " in out
    assert main(["check", "open.json", "--format", "github"]) == 4
    assert capsys.readouterr().out.startswith("::warning title=undecided::8 × ")
    assert [main(["diff", "clean.json", f"{name}.json"]) for name in ("open", "clean", "leaks")] == [4, 0, 0]
    out = capsys.readouterr().out
    assert "verdict: clean → undecided\nundecided: new: 8 × " in out
    assert "verdict: clean → leaks" in out


def test_a_suppression_tolerates_what_is_undecided_of_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open.json").write_text(json_of(reported(held)))
    (tmp_path / ".leak-report.toml").write_text("[[suppress]]\nreason = 'a table'\nfunction = 'held'\n")
    assert main(["check", "open.json"]) == 0
    assert capsys.readouterr().out == "no leaks, 1 suppressed\n"


# ---------------------------------------------------------------------- what is not watched


def unseen_patch() -> Patch:
    return Patch(
        library="python",
        name="something",
        why="a test",
        tested="3.11",
        guard="none",
        otherwise="nothing",
        warns=False,
        unseen="tensors of a certain sort",
    )


def test_what_is_not_watched_is_said_first_and_no_run_is_clean_then() -> None:
    patch = unseen_patch()
    PATCHES.fail(patch, "it is not there")
    try:
        made = reported(clean)
        [line] = made.unwatched
        assert line.endswith("(tested: 3.11): tensors of a certain sort")
        assert made.verdict == "undecided"
        assert text_of(made).splitlines()[:2] == ["no leak found", f"undecided: not watched: {line}"]
        leaks = reported(leaking)
        assert leaks.verdict == "leaks"
        assert text_of(leaks).splitlines()[1] == f"undecided: not watched: {line}"
        assert merged([made, replace(leaks, program=replace(leaks.program, pid=1))]).unwatched == (line,)
        with pytest.warns(LeakWarning, match="not everything could be judged: not watched: "), assert_no_leaks():
            pass
    finally:
        del PATCHES._failures[patch]
    assert reported(clean).verdict == "clean"


def test_every_guard_of_births_says_what_is_unseen_without_it() -> None:
    from disposescope.tensors import patches

    assert patches.TORCH_ALLOCATION.unseen
    assert patches.TORCH_DISPOSAL.unseen


@pytest.mark.parametrize("name", ["torch.tensor", "numpy.array", "tensor", "Tenser", "jax.array"])
def test_an_unknown_kind_of_tensor_is_refused(tmp_path: Path, name: str) -> None:
    done = report(tmp_path, "run", "--kinds", name, program(tmp_path, "print(1)\n"))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"unknown kind of tensor {name!r}" in done.stderr
    assert "known are Tensor, PackedSequence, numpy.ndarray, torch.Tensor, jax.Array" in done.stderr


def test_a_filter_by_a_kind_that_nothing_was_of_is_undecided(tmp_path: Path) -> None:
    done = report(tmp_path, "run", "--fail-on", "any", "--kinds", "my.Handle", program(tmp_path, "print(1)\n"))
    assert done.returncode == 4
    assert "the filter by kinds names 'my.Handle'" in done.stderr
    made = reported(held)
    assert of_kinds(made, ("Tensor",)).kept_nbytes == 0


# ---------------------------------------------------------------------- how the program ended


def test_a_run_that_ended_by_an_exception_says_so_first(tmp_path: Path) -> None:
    done = report(tmp_path, "run", "-o", "r.json", program(tmp_path, "raise ValueError('bad\\nvery')\n"))
    lines = done.stderr[done.stderr.index("leak-report: ") :].splitlines()
    assert lines[0] == "leak-report: the program ended by ValueError: bad"
    assert lines[1].startswith("no leak found")
    assert "undecided: the program did not come to its end, so what the rest of it keeps is not known" in done.stderr
    content = json.loads((tmp_path / "r.json").read_text())
    assert (content["program"]["ended"], content["program"]["error"]) == ("exception", "ValueError: bad")
    assert content["verdict"] == "undecided"
    assert report(tmp_path, "check", "r.json").returncode == 4


def test_after_a_memory_error_the_largest_holders_come_first(tmp_path: Path) -> None:
    code = (
        "import numpy as np\nsmall = np.zeros(1000)\n"
        "def work():\n    large = np.zeros(10**6)\n    raise MemoryError('no more')\nwork()\n"
    )
    done = report(tmp_path, "run", program(tmp_path, code))
    lines = done.stderr[done.stderr.index("leak-report: ") :].splitlines()
    assert lines[0] == "leak-report: the program ended by MemoryError: no more"
    assert lines[1].startswith("alive then, the largest first: 8.0 MB: 1 × program.py:4 held by ")
    assert "8.0 kB: 1 × program.py:2 held by small" in lines[1]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["program.py"], "SyntaxError: "),
        (["-m", "json.missing"], "No module named json.missing"),
        (["-c", "def ("], "SyntaxError: "),
        (["-m", "program"], "SyntaxError: "),
    ],
)
def test_a_program_that_never_ran_has_no_verdict(tmp_path: Path, args: list[str], why: str) -> None:
    program(tmp_path, "def (\n")
    done = report(tmp_path, "run", "-o", "r.json", *args)
    assert done.returncode == 1
    [last] = [line for line in done.stderr.splitlines() if line.startswith("leak-report: the program")]
    assert last.startswith("leak-report: the program never ran (")
    assert why in last
    assert last.endswith("): there is no verdict")
    made = report_from_json((tmp_path / "r.json").read_text())
    assert (made.verdict, made.program.ended) == (None, "not run")
    assert report(tmp_path, "check", "r.json").returncode == 4


def test_a_program_that_imports_what_is_wrong_has_run(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def (\n")
    done = report(tmp_path, "run", program(tmp_path, "import wrong\n"))
    assert "leak-report: the program ended by SyntaxError: " in done.stderr


# ---------------------------------------------------------------------- exceptions that are kept


KEPT_EXCEPTION = """
import sys
import numpy as np
def cell():
    batch = np.zeros(10**6)
    raise ValueError("a cell of a notebook")
try:
    cell()
except ValueError as error:
    sys.last_value = sys.last_exc = error
"""


def test_the_last_exception_of_a_program_that_ended_well_is_a_leak(tmp_path: Path) -> None:
    done = report(tmp_path, "run", program(tmp_path, KEPT_EXCEPTION))
    assert "1. exception (likely): 1 × numpy.ndarray, 8.0 MB" in done.stderr
    done = report(tmp_path, "run", program(tmp_path, "import numpy as np\nx = np.zeros(10**6)\n1 / 0\n"))
    assert "exception (" not in done.stderr


def test_the_environment_variable_tells_a_program_that_died(tmp_path: Path) -> None:
    code = "import disposescope\nimport numpy as np\ndef f():\n    x = np.zeros(10**6)\n    1 / 0\nf()\n"
    done = subprocess.run(
        [sys.executable, program(tmp_path, code)],
        cwd=tmp_path,
        env={**os.environ, **environment(), "PYTHONDISPOSESCOPE": "leaks"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "leak-report: the program ended by ZeroDivisionError: division by zero" in done.stderr
    assert "exception (certain)" not in done.stderr
    assert COMMANDS


def test_an_old_report_that_is_different_is_undecided_too() -> None:
    difference = difference_of(reported(held), reported(clean))
    assert (difference.old_verdict, difference.new_verdict) == ("undecided", "clean")
    assert [line.startswith("old: ") for line in difference.undecided] == [True]


def test_native_growth_is_no_row_of_its_own_where_graphs_that_are_leaks_explain_it() -> None:
    native = leak(kind="native", sure="possible", tensor=None, nbytes=30_000_000, site=None, count=1)
    graph = leak(kind="graph", nbytes=1_000, count=5)
    told = [
        [row.kind for row in without_growth_of_graphs(Report(leaks=(replace(graph, graph_nbytes=n), native))).leaks]
        for n in (14_000_000, 16_000_000)
    ]
    assert told == [["graph", "native"], ["graph"]]
    assert without_growth_of_graphs(Report(leaks=(replace(graph, graph_nbytes=10**8), native), count=6)).count == 5
