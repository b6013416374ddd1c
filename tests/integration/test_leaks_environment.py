"""``PYTHONDISPOSESCOPE=leaks`` watches any program; ``SIGUSR1`` asks for a report while it runs."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

LEAKY = "import disposescope as ds; history = [ds.zeros(1000) for _ in range(3)]\n"


def run(program: str, value: str = "leaks") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDISPOSESCOPE": value},
    )


def test_a_program_prints_its_report_when_it_ends():
    done = run(LEAKY + "print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.startswith("leak-report: ")
    assert "3 × Tensor float64 (1000,)" in done.stderr


def test_a_program_that_was_interrupted_says_so_first():
    done = run(LEAKY + "raise KeyboardInterrupt")
    assert "leak-report: the program was ended by Ctrl-C\n" in done.stderr


def test_a_program_that_ends_itself_prints_its_report_too():
    done = run(LEAKY + "import os; os._exit(5)")
    assert done.returncode == 5
    assert done.stderr.startswith("leak-report: ")


@pytest.mark.parametrize("end", ["", "os._exit(5)", "raise ValueError"])
def test_nothing_is_left_in_the_folder_for_temporary_files(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import numpy'], check=True)\n"
    assert "leak-report: " in run(f"{LEAKY}import os\n{child}{end}").stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_variable_nothing_is_printed():
    assert run(LEAKY, "").stderr == ""


def test_an_unknown_value_is_reported():
    assert "PYTHONDISPOSESCOPE='leak' is not known and does nothing" in run(LEAKY, "leak").stderr


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal here")
def test_a_signal_asks_for_a_report_and_the_handler_before_is_called():
    program = (
        "import signal, os, time, sys\n"
        "signal.signal(signal.SIGUSR1, lambda number, frame: print('mine', number == signal.SIGUSR1, flush=True))\n"
        + LEAKY
        + "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "deadline = time.monotonic() + 500\n"
        "while open(sys.argv[1]).read().count('leak-report') == 0 and time.monotonic() < deadline: pass\n"
        "print('goes on')\n"
    )
    with tempfile.NamedTemporaryFile("r") as errors:
        with open(errors.name, "w") as stderr:
            done = subprocess.run(
                [sys.executable, "-c", program, errors.name],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONDISPOSESCOPE": "leaks"},
            )
        told = errors.read()
    assert done.stdout == "mine True\ngoes on\n"
    assert told.count("leak-report: ") == 2
    assert told.count("3 × Tensor float64 (1000,)") == 2
