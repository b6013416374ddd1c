"""The stress programs, with few rounds: they run, everything does something, nothing is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


# An interrupt that meets the code of the tool for coverage leaves its lock taken.
@pytest.mark.long
@pytest.mark.unmeasured
def test_a_few_rounds_of_stress_find_nothing(tmp_path: Path) -> None:
    # To a file: a worker that outlives a crash would keep a pipe open.
    with open(tmp_path / "output", "w+") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.stress", "--rounds", "3"],
            cwd=CHECKOUT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        output.seek(0)
        told = output.read()
    assert ended.returncode == 0, told
    lines = [line for line in told.splitlines() if re.match(r"\w+: (\d+ rounds|not run)", line)]
    ran = [line for line in lines if re.match(r"\w+: 3 rounds, [1-9]\d* operations, 0 findings,", line)]
    not_run = [line for line in lines if re.match(r"\w+: not run, there is no (torch|jax)$", line)]
    assert len(ran) + len(not_run) == len(lines), told
    assert len(ran) >= 8


@pytest.mark.long
def test_advice_for_a_few_random_programs_holds() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.stress.advice", "--rounds", "4", "--only", "numpy"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^ +[1-9]\d* pieces of advice: del$", ended.stdout, re.MULTILINE), ended.stdout
