"""Programs under ``leak-report run``, in forks of processes that have imported their libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import disposescope

__all__ = ["FORKED", "processes_end"]

FORKING_PROCESS = Path(__file__).with_name("forking_process.py")
# PyTorch imports its compiler when the first optimizer is made.
IMPORTED = {"numpy": ["numpy"], "jax": ["jax"], "torch": ["torch", "torch._dynamo"]}


class ForkedPrograms:
    """The processes that run programs, one for each library: see ``forking_process.py``."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, bool], subprocess.Popen[str]] = {}

    def report_of(
        self, program: Path, folder: Path, *, library: str, is_measured: bool = False, has_timer: bool = True
    ) -> str:
        """Return the report of a run of a program as JSON; the program must end well.

        Parameters
        ----------
        program : Path
            The program.
        folder : Path
            Where the report and what the program prints are written.
        library : {"numpy", "jax", "torch"}
            The library that the program uses.
        is_measured : bool, default False
            Whether the run counts for coverage, which takes several times as long.
        has_timer : bool, default True
            Whether a report is written now and then.
        """
        output, log = folder / "report.json", folder / "log.txt"
        process = self._process(library, is_measured)
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"program": str(program), "output": str(output), "log": str(log), "has_timer": has_timer}
        print(json.dumps(request), file=process.stdin, flush=True)
        status = process.stdout.readline()
        assert status == "0\n", log.read_text(encoding="utf-8")
        return output.read_text(encoding="utf-8")

    def close(self) -> None:
        """End the processes."""
        while self._processes:
            _, process = self._processes.popitem()
            process.communicate()

    def _process(self, library: str, is_measured: bool) -> subprocess.Popen[str]:
        if (library, is_measured) not in self._processes:
            own = str(Path(disposescope.__file__).parents[1])
            path = os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH")]))
            environment = {
                name: value for name, value in os.environ.items() if is_measured or not name.startswith("COVERAGE_")
            }
            environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
            self._processes[library, is_measured] = subprocess.Popen(
                [sys.executable, str(FORKING_PROCESS), *IMPORTED[library]],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._processes[library, is_measured]


FORKED = ForkedPrograms()


@pytest.fixture(scope="session", autouse=True)
def processes_end() -> Iterator[None]:
    """End the processes after the last test; for the modules that import this."""
    yield
    FORKED.close()
