"""Tasks, actors and data pipelines of Ray in scopes, and the report of all of its workers."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.page_programs import program_of, run, shown_by

pytest.importorskip("ray", reason="pip install -e '.[test-engines]' has Ray")

# Ray kills its workers when it is shut down, and a worker has a report when it has written one.
UNTIL_THE_ACTOR_HAS_A_REPORT = """
import json, pathlib, tempfile, time
folder = pathlib.Path(tempfile.gettempdir())
def has_leak(file):
    return any(leak["count"] == 40 for leak in json.loads(file.read_text()).get("leaks", ()))
while not any(map(has_leak, folder.glob("leak-report-*/*.json"))):
    time.sleep(0.05)
ray.shutdown()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the paths of Ray's sockets have no more than 107 characters."""
    name = tempfile.mkdtemp(prefix="ray-")
    yield Path(name)
    shutil.rmtree(name, ignore_errors=True)


@pytest.mark.long
def test_the_program_of_the_page_runs_and_the_report_names_the_actor_that_grows(folder: Path) -> None:
    code = program_of("ray.md")
    assert code.endswith("\nray.shutdown()\n")
    (folder / "program.py").write_text(code.removesuffix("ray.shutdown()\n") + UNTIL_THE_ACTOR_HAS_A_REPORT)
    inside = dict.fromkeys(("HOME", "RAY_TMPDIR", "TMPDIR"), str(folder))
    text = run("run", "-o", "leaks.json", "program.py", cwd=folder, **inside)
    for line in shown_by("ray.md"):
        assert line in text, text
    report = json.loads((folder / "leaks.json").read_text())
    [leak] = report["leaks"]
    assert (leak["kind"], leak["count"], leak["site"]["function"]) == ("growth", 40, "Scorer.score"), text
    assert leak["holders"][0].endswith(".history[0]")
    assert leak["pid"] in {process["pid"] for process in report["processes"] if process["role"] == "worker"}
