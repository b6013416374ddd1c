"""NumPy's own tests, in an open scope and without one: what fails inside must fail outside too.

A script, no test: ``python tests/integration/numpy_suite.py [part ...]``, where a part is a folder
of NumPy with tests, such as ``_core``, ``lib``, ``linalg`` and ``ma``. Without parts the two short
ones, ``linalg`` and ``ma``. Needs pytest and hypothesis.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("linalg", "ma")


class Outcomes:
    """A pytest plugin: how many tests passed, and which did not."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} ({report.when})")
        elif report.when == "call" and report.passed:
            self.passed += 1


def run(mode: str, told: str, parts: list[str]) -> None:
    import numpy as np
    import pytest

    import disposescope as ds

    numpy = Path(np.__file__).parent
    options = ["-qq", "--tb=line", "-p", "no:cacheprovider", f"--rootdir={numpy}", "-c", "/dev/null", "-m", "not slow"]
    outcomes = Outcomes()
    served = False
    if mode == "inside":
        with ds.dispose_scope() as scope:
            pytest.main([*options, *(str(numpy / part / "tests") for part in parts)], plugins=[outcomes])
            served = scope.arena is not None and scope.arena.hits > 1000
        print(scope.arena)
    else:
        pytest.main([*options, *(str(numpy / part / "tests") for part in parts)], plugins=[outcomes])
    Path(told).write_text("\n".join([str(outcomes.passed), str(served), *outcomes.failed]))


def told_by(mode: str, parts: list[str]) -> tuple[int, bool, set[str]]:
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, __file__, f"--{mode}", file.name, *parts]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        lines = Path(file.name).read_text().splitlines()
        if process.returncode or not lines:
            sys.exit(f"the run {mode} of a scope ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return int(lines[0]), lines[1] == "True", set(lines[2:])


def main(parts: list[str]) -> None:
    with ThreadPoolExecutor() as pool:
        outside, inside = pool.submit(told_by, "outside", parts), pool.submit(told_by, "inside", parts)
    (passed, _, failed), (passed_inside, served, failed_inside) = outside.result(), inside.result()
    print(f"NumPy's tests of {', '.join(parts)}: {passed} passed and {len(failed)} failed outside of a scope, ", end="")
    print(f"{passed_inside} passed and {len(failed_inside)} failed inside")
    print(*sorted(failed_inside - failed), sep="\n")
    if not served:
        sys.exit("the arena did not serve")
    if failed_inside - failed or passed_inside != passed:
        sys.exit("a scope around NumPy's tests changes their outcome")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] in (["--inside"], ["--outside"]):
        run(sys.argv[1][2:], sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1:] or list(SHORT))
