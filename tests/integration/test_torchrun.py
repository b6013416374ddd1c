"""Ranks that ``torchrun`` starts, in scopes, and reports that tell which of them grows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.page_programs import environment, program_of, run, shown_by

torch = pytest.importorskip("torch", reason="torchrun is PyTorch's")

pytestmark = pytest.mark.unmeasured
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch was built without gloo", allow_module_level=True)

PAGE = "which-rank-grows.md"
RANKS = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")


@pytest.mark.long
def test_the_report_of_a_launcher_names_the_rank_that_grows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program_of(PAGE))
    text = run("run", "-o", "leaks.json", "-m", "torch.distributed.run", *RANKS, "train.py", cwd=tmp_path)
    for line in shown_by(PAGE):
        assert line in text
    report = json.loads((tmp_path / "leaks.json").read_text())
    assert [(leak["rank"], leak["kind"]) for leak in report["leaks"]] == [(1, "growth")]
    assert {process["rank"] for process in report["processes"]} == {None, 0, 1}


@pytest.mark.long
def test_the_reports_that_ranks_wrote_apart_are_merged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program_of(PAGE))
    leak_report = f"'{sys.executable}' -m disposescope"
    launcher = [sys.executable, "-m", "torch.distributed.run", *RANKS, "--no-python"]
    rank = ["bash", "-c", f"{leak_report} run -q -o leaks-$RANK.json train.py"]
    done = subprocess.run(
        [*launcher, *rank], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    run("merge", "leaks-0.json", "leaks-1.json", "-o", "leaks.json", cwd=tmp_path)
    text = run("show", "leaks.json", cwd=tmp_path)
    for line in shown_by(PAGE):
        assert line in text
    assert "on rank 0" not in text
