"""Small leaky programs, each with the line and the holder to name, and their repaired twins."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import disposescope

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are run in forks"),
]

CORPUS = Path(__file__).with_name("corpus")
NAMES = sorted(folder.name for folder in CORPUS.iterdir() if (folder / "leaky.py").exists())
FORKING_PROCESS = Path(__file__).with_name("forking_process.py")

# PyTorch imports its compiler when the first optimizer is made.
IMPORTED = {"numpy": ["numpy"], "jax": ["jax"], "torch": ["torch", "torch._dynamo"]}

ForkingProcesses = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def forking_process() -> Iterator[ForkingProcesses]:
    """Yield a function that returns the process that runs the programs of a library.

    The process has imported the library: see ``forking_process.py``.
    """
    path = os.pathsep.join(filter(None, [str(Path(disposescope.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    # Not measured for coverage, which takes several times as long: other tests reach the same code.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    processes: dict[str, subprocess.Popen[str]] = {}

    def of(library: str) -> subprocess.Popen[str]:
        if library not in processes:
            processes[library] = subprocess.Popen(
                [sys.executable, str(FORKING_PROCESS), *IMPORTED[library]],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return processes[library]

    yield of
    for process in processes.values():
        process.communicate()


def report_of(program: Path, folder: Path, forking_process: ForkingProcesses) -> dict[str, Any]:
    """The report of a run of a program, which must end well."""
    output, log = folder / "report.json", folder / "log.txt"
    library = program.parent.name.partition("_")[0]
    process = forking_process(library if library in {"torch", "jax"} else "numpy")
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps({"program": str(program), "output": str(output), "log": str(log)}), file=process.stdin, flush=True)
    status = process.stdout.readline()
    assert status == "0\n", log.read_text(encoding="utf-8")
    return json.loads(output.read_text(encoding="utf-8"))


def needs_what_it_imports(name: str) -> None:
    library = name.partition("_")[0]
    if library in {"torch", "jax"} and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def wanted_of(program: Path) -> tuple[set[str], str, tuple[str, int] | None]:
    """Return the kinds of leak that may be told, a part of the holder, and where memory was made.

    That is a file name and a line, or None where no line of the program made it.
    """
    text = program.read_text(encoding="utf-8")
    kinds, holder = (re.search(rf"^{word}: (.*)$", text, re.MULTILINE) for word in ("kind", "holder"))
    assert kinds is not None
    assert holder is not None
    lines = [(program.name, number) for number, row in enumerate(text.splitlines(), 1) if row.endswith("# LEAK")]
    assert len(lines) == (kinds[1] != "native")
    return set(kinds[1].split(", ")), holder[1], lines[0] if lines else None


@pytest.mark.parametrize("name", NAMES)
def test_the_leak_is_reported_with_its_line_and_its_holder(
    name: str, tmp_path: Path, forking_process: ForkingProcesses
) -> None:
    needs_what_it_imports(name)
    program = CORPUS / name / "leaky.py"
    kinds, holder, line = wanted_of(program)
    leaks = report_of(program, tmp_path, forking_process)["leaks"]
    told = [
        (
            leak["kind"],
            leak["site"] and (Path(leak["site"]["file"]).name, leak["site"]["line"]),
            # A scope that is open is not held: its name and its block are told.
            [*leak["holders"], *leak["carriers"], *leak["members"], *([] if leak["tensor"] else [leak["explanation"]])],
        )
        for leak in leaks
    ]
    assert any(
        kind in kinds and site == line and (any(holder in chain for chain in chains) or (holder == "cycle" and chains))
        for kind, site, chains in told
    ), told


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_reported_of_its_repaired_twin(name: str, tmp_path: Path, forking_process: ForkingProcesses) -> None:
    needs_what_it_imports(name)
    leaks = report_of(CORPUS / name / "repaired.py", tmp_path, forking_process)["leaks"]
    assert [(leak["kind"], leak["site"], leak["holders"]) for leak in leaks] == []
