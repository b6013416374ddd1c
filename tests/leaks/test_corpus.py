"""Small leaky programs, each with the line and the holder that must be named, and their repaired twins."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import disposescope

CORPUS = Path(__file__).with_name("corpus")
NAMES = sorted(folder.name for folder in CORPUS.iterdir() if (folder / "leaky.py").exists())
COMMAND = (sys.executable, "-m", "disposescope.scopes.leaks.commands")


def report_of(program: Path, folder: Path) -> dict[str, Any]:
    """The report of a run of a program, which must end well."""
    output = folder / "report.json"
    path = os.pathsep.join(filter(None, [str(Path(disposescope.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [*COMMAND, "run", "-o", str(output), str(program)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(output.read_text(encoding="utf-8"))


def needs_what_it_imports(name: str) -> None:
    library = name.partition("_")[0]
    if library in {"torch", "jax"} and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def wanted_of(program: Path) -> tuple[set[str], str, int]:
    """The kinds of leak that may be told, a part of the holder, and the line that made the memory."""
    text = program.read_text(encoding="utf-8")
    kinds, holder = (re.search(rf"^{word}: (.*)$", text, re.MULTILINE) for word in ("kind", "holder"))
    assert kinds is not None
    assert holder is not None
    [line] = [number for number, row in enumerate(text.splitlines(), 1) if row.endswith("# LEAK")]
    return set(kinds[1].split(", ")), holder[1], line


@pytest.mark.parametrize("name", NAMES)
def test_the_leak_is_told_with_its_line_and_its_holder(name: str, tmp_path: Path) -> None:
    needs_what_it_imports(name)
    program = CORPUS / name / "leaky.py"
    kinds, holder, line = wanted_of(program)
    leaks = report_of(program, tmp_path)["leaks"]
    told = [
        (
            leak["kind"],
            leak["site"] and (Path(leak["site"]["file"]).name, leak["site"]["line"]),
            [*leak["holders"], *leak["carriers"], *leak["members"]],
        )
        for leak in leaks
    ]
    assert any(
        kind in kinds
        and site == ("leaky.py", line)
        and (any(holder in chain for chain in chains) or (holder == "cycle" and chains))
        for kind, site, chains in told
    ), told


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_told_of_its_repaired_twin(name: str, tmp_path: Path) -> None:
    needs_what_it_imports(name)
    leaks = report_of(CORPUS / name / "repaired.py", tmp_path)["leaks"]
    assert [(leak["kind"], leak["site"], leak["holders"]) for leak in leaks] == []
