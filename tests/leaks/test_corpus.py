"""Small leaky programs, each with the line and the holder to name, and their repaired twins."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .forked_programs import FORKED, processes_end  # noqa: F401

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are run in forks"),
]

CORPUS = Path(__file__).with_name("corpus")
NAMES = sorted(folder.name for folder in CORPUS.iterdir() if (folder / "leaky.py").exists())


def report_of(program: Path, folder: Path) -> dict[str, Any]:
    """The report of a run of a program, which must end well."""
    library = program.parent.name.partition("_")[0]
    report: dict[str, Any] = json.loads(
        FORKED.report_of(program, folder, library=library if library in {"torch", "jax"} else "numpy")
    )
    return report


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
def test_the_leak_is_reported_with_its_line_and_its_holder(name: str, tmp_path: Path) -> None:
    needs_what_it_imports(name)
    program = CORPUS / name / "leaky.py"
    kinds, holder, line = wanted_of(program)
    leaks = report_of(program, tmp_path)["leaks"]
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
def test_nothing_is_reported_of_its_repaired_twin(name: str, tmp_path: Path) -> None:
    needs_what_it_imports(name)
    leaks = report_of(CORPUS / name / "repaired.py", tmp_path)["leaks"]
    assert [(leak["kind"], leak["site"], leak["holders"]) for leak in leaks] == []
