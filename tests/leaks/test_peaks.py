"""``leak-report run --peak``: where a whole program's memory peaks, and what would lower that."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disposescope.leaks.detector.detector import LeakDetector
from disposescope.leaks.detector.watching import mark
from disposescope.leaks.peaks.program import LifeRecorder
from disposescope.leaks.report.peak import ProgramPeak
from disposescope.leaks.reporters.json_report import json_of, read_report, report_from_json

from .example_reports import training_report

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import numpy as np

import disposescope as ds

def step(n):
    hidden = np.ones(n)
    total = float(hidden.sum())
    a = np.ones(n)
    b = a + 1.0
    return total + float(b.sum())

for number in range(5):
    with ds.dispose_scope("step"):
        step(900_000 if number == 3 else 300_000)
"""
ADVISED = PROGRAM.replace("    a = np.ones(n)\n", "    del hidden\n    a = np.ones(n)\n")
WITHOUT_SCOPES = PROGRAM.replace('    with ds.dispose_scope("step"):\n    ', "").replace(
    "import disposescope as ds\n", ""
)

OF_TORCH = """\
import torch

def step(n):
    hidden = torch.ones(n)
    total = float(hidden.sum())
    a = torch.ones(n)
    b = a + 1.0
    return total + float(b.sum())

step(1_000_000)
"""


def run(folder: Path, text: str, *options: str) -> tuple[ProgramPeak | None, str]:
    program = folder / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "disposescope.leaks.commands",
            "run",
            *options,
            "-o",
            "out.json",
            "--force",
            program.name,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return read_report(str(folder / "out.json")).peak, done.stderr


def test_the_peak_of_a_program_is_told_with_its_pass_its_lines_and_advice(tmp_path: Path) -> None:
    peak, told = run(tmp_path, PROGRAM, "--peak")
    assert peak is not None
    assert (peak.pass_name, peak.pass_index, peak.is_whole) == ("step", 4, True)
    assert peak.line == "program.py:9 in step()"
    assert peak.nbytes == pytest.approx(3 * 900_000 * 8, rel=0.01)
    assert "peak 21.6 MB at program.py:9 in step() in pass 4 of step; there live\n" in told
    assert "    7.2 MB in 1 at program.py:8 in step()\n" in told
    assert "what would lower it:\n  del hidden after program.py:7: 7.2 MB less, peak 14.4 MB\n" in told
    advised, _ = run(tmp_path, ADVISED, "--peak")
    assert advised is not None
    assert advised.nbytes == pytest.approx(peak.advice[0].peak_nbytes, rel=0.02)


def test_a_program_without_scopes_is_one_pass(tmp_path: Path) -> None:
    peak, told = run(tmp_path, WITHOUT_SCOPES, "--peak")
    assert peak is not None
    assert peak.pass_name is None
    assert "peak 21.6 MB at program.py:8 in step(); there live\n" in told
    assert max(nbytes for _, nbytes in peak.course) == peak.nbytes
    assert sum(life.nbytes for life in peak.lives if life.at_peak) == pytest.approx(peak.nbytes, rel=0.01)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_peak_of_tensors_is_told(tmp_path: Path) -> None:
    peak, told = run(tmp_path, OF_TORCH, "--peak")
    assert peak is not None
    assert peak.nbytes == pytest.approx(3 * 4_000_000, rel=0.01)
    assert "del hidden after program.py:5: 4.0 MB less, peak 8.0 MB" in told


def test_without_the_option_no_peak_is_recorded(tmp_path: Path) -> None:
    peak, told = run(tmp_path, WITHOUT_SCOPES)
    assert peak is None
    assert "peak" not in told


def test_what_a_library_makes_when_it_is_imported_has_no_line_of_the_import_system(tmp_path: Path) -> None:
    # NumPy imports `numpy.random` where it is first asked for; that keeps a few bytes.
    program = WITHOUT_SCOPES.replace("def step(n):\n", "def step(n):\n    np.random.default_rng(0)\n")
    _, told = run(tmp_path, program, "--peak")
    assert "what would lower it" in told
    assert "importlib" not in told


def test_a_program_that_ends_itself_has_its_peak_too(tmp_path: Path) -> None:
    peak, told = run(tmp_path, f"{WITHOUT_SCOPES}\nimport os\nos._exit(0)\n", "--peak")
    assert peak is not None
    assert "peak 21.6 MB at" in told


def recorded(most_births: int = 1 << 20) -> ProgramPeak | None:
    import numpy as np

    recorder = LifeRecorder(most_births)
    with LeakDetector():
        recorder.start()
        try:
            held: list[object] = []
            for number in range(20):
                held.append(np.ones(1000 * (number + 1)))
                if number == 14:
                    held.clear()
                recorder.passed("loop", number + 1)
        finally:
            recorder.stop()
        mark("nothing is recorded any more")
    return recorder.peak()


def test_a_recording_that_ends_early_says_so() -> None:
    whole, first = recorded(), recorded(10)
    assert whole is not None
    assert first is not None
    assert (whole.is_whole, whole.pass_index) == (True, 15)
    assert whole.nbytes == pytest.approx(8000 * sum(range(1, 16)), rel=0.01)
    assert (first.is_whole, first.births) == (False, 10)
    assert first.nbytes < whole.nbytes
    assert str(first).startswith("peak of the first 10 births ")


def test_a_program_that_makes_nothing_has_no_peak() -> None:
    recorder = LifeRecorder()
    with LeakDetector():
        recorder.start()
        recorder.stop()
        recorder.stop()
    assert recorder.peak() is None


def test_what_a_forked_process_makes_is_not_the_peak_of_the_parent() -> None:
    import numpy as np

    recorder = LifeRecorder()
    with LeakDetector():
        recorder.start()
        recorder.forget()
        np.ones(5000)
        recorder.stop()
    assert recorder.peak() is None


def test_a_peak_is_written_and_read_back() -> None:
    report = training_report()
    assert report.peak is not None
    assert report_from_json(json_of(report)) == report
    assert str(report.peak) in str(report)


GROWING = """\
import numpy as np

kept = []

def collect():
    for number in range(40):
        kept.append(np.full(100_000, number))

collect()
"""


@pytest.mark.long
def test_the_verdict_is_the_same_with_and_without_a_peak(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GROWING)
    for arguments in (("program.py",), ("-c", GROWING)):
        heads: list[str] = []
        for options in ((), ("--peak",)):
            command = [sys.executable, "-m", "disposescope.leaks.commands", "run", *options, *arguments]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            heads.append(next(line for line in done.stderr.splitlines() if line.startswith("leak-report: ")))
            if options:
                name = "program.py" if arguments[0] == "program.py" else "<string>"
                assert f"peak 32.0 MB at {name}:7 in collect(); there live" in done.stdout + done.stderr
        assert heads == ["leak-report: 1 suspect, 40 tensors, 32.0 MB"] * 2


SCRIPT = """\
import numpy as np

N = 300_000
x = np.ones(N)
s = float(x.sum())
{before}
a = np.ones(N)
b = a + 1.0
c = b * 2.0
s += float(c.sum())
{after}
"""
READ_LATER = {
    "a generator": ("", "print(sum(float(x[i]) for i in range(3)))"),
    "a list": ("", "print([float(x[i]) for i in range(3)])"),
    "a dict": ("", "print({i: float(x[i]) for i in range(3)})"),
    "a text that is run": ("", "exec('print(x[3])')"),
    "the variables of the module": ("", "print(globals()['x'][3])"),
    "the module itself": ("", "import __main__\nprint(__main__.x[3])"),
    "a text that is timed": ("", "import timeit\nprint(timeit.timeit('x[3]', 'from __main__ import x', number=3))"),
    "what runs at the end": (
        "import atexit\n\ndef last(name):\n    print(globals()[name][3])\n\natexit.register(last, 'x')",
        "",
    ),
}


@pytest.mark.parametrize(("before", "after"), READ_LATER.values(), ids=list(READ_LATER))
def test_nothing_is_said_of_a_variable_of_the_program_that_is_read_later(
    tmp_path: Path, before: str, after: str
) -> None:
    peak, _ = run(tmp_path, SCRIPT.format(before=before, after=after), "--peak")
    assert peak is not None
    assert peak.nbytes == pytest.approx(4 * 300_000 * 8, rel=0.01)
    assert [each.text for each in peak.advice if each.text.startswith("del x")] == []


def test_a_variable_of_the_program_can_be_deleted(tmp_path: Path) -> None:
    peak, _ = run(tmp_path, SCRIPT.format(before="", after=""), "--peak")
    assert peak is not None
    [advice] = [each for each in peak.advice if each.text.startswith("del x")]
    after, _ = run(tmp_path, SCRIPT.format(before="del x", after=""), "--peak")
    assert after is not None
    assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


WRITTEN_ANEW = """\
import numpy as np

kept = []

def step(n):
    x = np.ones(n)
    kept.append(x) ; s = float(x.sum())
    a = np.ones(n)
    b = a + 1.0
    return s + float(b.sum())

step(300_000)
kept.clear()
text = open(__file__).read()
open(__file__, "w").write(text.replace("    kept.append(x) ; s", "    float(np.sum(x)); s", 1))
"""
IN_THREADS = """\
import threading
import numpy as np

def work():
    z = np.ones(300_000) * 3.0
    g = np.sqrt(z)
    first.wait()
    return float(g[0]) + float(z[1])

first = threading.Barrier(2)
threads = [threading.Thread(target=work) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


@pytest.mark.parametrize("program", [WRITTEN_ANEW, IN_THREADS], ids=["source written anew", "threads"])
def test_there_is_no_advice_where_the_source_says_nothing_of_the_run(tmp_path: Path, program: str) -> None:
    peak, _ = run(tmp_path, program, "--peak")
    assert peak is not None
    assert peak.advice == ()


HARD_TO_ANALYSE = {
    "a proxy of what has gone": (
        "import weakref\nclass Thing:\n    pass\nthing = weakref.proxy(Thing())",
        "float((x * thing if s is None else x).sum())",
    ),
    "an object that refuses": (
        "class Refusing:\n    def __getattr__(self, name):\n        raise OSError(name)\nthing = Refusing()",
        "float((thing(x) if s is None else x).sum())",
    ),
    "a sum of a thousand terms": ("", "float((x" + " + s" * 1000 + ").sum())"),
}


@pytest.mark.parametrize(("before", "use"), HARD_TO_ANALYSE.values(), ids=list(HARD_TO_ANALYSE))
def test_the_peak_of_a_program_that_is_hard_to_analyse_is_told(tmp_path: Path, before: str, use: str) -> None:
    program = (
        f"import sys\nimport numpy as np\n{before}\ndef step(n, s):\n    x = np.ones(n)\n    t = {use}\n"
        "    a = np.ones(n)\n    b = a + 1.0\n    return t + float(b.sum())\nstep(300_000, 1.0)\n"
    )
    peak, stderr = run(tmp_path, program, "--peak")
    assert peak is not None
    assert "internal error" not in stderr


def test_where_the_analysis_of_the_peak_fails_the_report_is_written_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "import numpy as np\n"
        "from disposescope.leaks.peaks.program import LifeRecorder\n"
        "def fail(self):\n"
        "    raise TypeError('broken')\n"
        "LifeRecorder.peak = fail\n"
        "kept = np.ones(1000)\n"
        "sys.exit(7)\n"
    )
    command = [sys.executable, "-m", "disposescope", "run", "--peak", "-o", "r.json", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    report = read_report(str(tmp_path / "r.json"))
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    assert "no peak is told: the peak: TypeError('broken')" in done.stderr
    assert report.unwatched == ("the peak: TypeError('broken')",)
    assert report.verdict == "undecided"


IN_WORKSPACE = """\
import numpy as np
import disposescope as ds

workspace = ds.Workspace("loop")

def step(n):
    a = np.ones(n)
    b = a + 1.0
    return float(b.sum())

for _ in range(3):
    with workspace.run():
        step(300_000)
"""


@pytest.mark.parametrize("rest", ["", "step(100_000)\n"], ids=["alone", "beside less"])
def test_no_peak_is_told_where_a_workspace_may_have_it(tmp_path: Path, rest: str) -> None:
    peak, told = run(tmp_path, IN_WORKSPACE + rest, "--peak")
    assert peak is None
    [line] = [line for line in told.splitlines() if line.startswith("no peak is told: ")]
    assert "workspace 'loop'" in line
    assert "4.8 MB" in line


def test_the_peak_is_told_where_the_passes_of_a_workspace_are_smaller(tmp_path: Path) -> None:
    peak, told = run(tmp_path, f"{IN_WORKSPACE}step(600_000)\n", "--peak")
    assert peak is not None
    assert peak.nbytes == pytest.approx(2 * 600_000 * 8, rel=0.01)
    assert "no peak" not in told


def test_why_there_is_no_peak_of_a_program_that_makes_nothing(tmp_path: Path) -> None:
    peak, told = run(tmp_path, "print(1)\n", "--peak")
    assert peak is None
    assert "no peak is told: no memory of NumPy or PyTorch was born" in told
