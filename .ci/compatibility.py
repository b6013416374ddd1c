"""Write the table of docs/compatibility.md from .ci/results.tsv, what ``.ci/matrix`` has found.

``compatibility.py`` writes it, and ``compatibility.py --check`` has status 1 where it differs.
``compatibility.py ROW OUTCOME`` first enters the outcome of a row, a JUnit file of pytest's, with
the versions that this interpreter finds installed.
"""

from __future__ import annotations

import datetime
import platform
import sys
import xml.etree.ElementTree
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = ROOT / ".ci" / "results.tsv"
ROWS = ROOT / ".ci" / "rows.txt"
BEGIN, END = "<!-- rows: written by .ci/compatibility.py -->\n", "<!-- end of rows -->\n"
COLUMNS = ["row", "date", "Python", "NumPy", "PyTorch", "JAX", "passed", "skipped", "failed"]


def main(arguments: list[str]) -> int:
    """Do what the command line asks for; return the status."""
    if arguments == ["--check"]:
        same = PAGE.read_text() == page(results())
        if not same:
            print("docs/compatibility.md differs from .ci/results.tsv: python .ci/compatibility.py", file=sys.stderr)
        return not same
    if not arguments:
        PAGE.write_text(page(results()))
        return 0
    name, file = arguments
    outcome = {"row": name, "date": datetime.date.today().isoformat(), **versions(), **counts(Path(file))}
    entered = {**results(), name: outcome}
    lines = ["\t".join(COLUMNS)]
    lines += ["\t".join(entered[row][column] for column in COLUMNS) for row in rows() if row in entered]
    RESULTS.write_text("\n".join(lines) + "\n")
    PAGE.write_text(page(entered))
    print(", ".join(f"{column} {value}" for column, value in outcome.items()))
    return outcome["failed"] != "0"


def rows() -> list[str]:
    """Return the names of all rows, in their order."""
    lines = ROWS.read_text().splitlines()
    return [line.split()[0] for line in lines if not line.startswith("#")]


def results() -> dict[str, dict[str, str]]:
    """Return the last result of each row that has one, by its name."""
    if not RESULTS.exists():
        return {}
    lines = [line.split("\t") for line in RESULTS.read_text().splitlines()[1:]]
    return {line[0]: dict(zip(COLUMNS, line, strict=True)) for line in lines}


def versions() -> dict[str, str]:
    """Return the versions of this interpreter and its libraries, "-" for what is not installed."""
    found = {"Python": platform.python_version()}
    for library, distribution in (("NumPy", "numpy"), ("PyTorch", "torch"), ("JAX", "jax")):
        try:
            found[library] = version(distribution)
        except PackageNotFoundError:
            found[library] = "-"
    return found


def counts(file: Path) -> dict[str, str]:
    """Return how many tests passed, were skipped and failed.

    Where pytest ended early, and left no whole file, none passed and "all" failed.
    """
    try:
        suites = list(xml.etree.ElementTree.parse(file).getroot().iter("testsuite"))
    except (OSError, xml.etree.ElementTree.ParseError):
        return {"passed": "0", "skipped": "0", "failed": "all"}
    total, skipped, failures, errors = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "skipped", "failures", "errors")
    )
    failed = failures + errors
    return {"passed": str(total - skipped - failed), "skipped": str(skipped), "failed": str(failed)}


def page(found: dict[str, dict[str, str]]) -> str:
    """Return the text of the page with these results in it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = [*COLUMNS[2:], "date"]
    table = [shown, ["---"] * len(shown)]
    table += [[found[row][column] for column in shown] for row in rows() if row in found]
    lines = ["| " + " | ".join("" if cell == "-" else cell for cell in cells) + " |" for cells in table]
    return before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
