"""FSDP2, DDP and what else of ``torch.distributed`` keeps what it gathers, unchanged in scopes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="these programs are PyTorch's")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch was built without gloo", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
def test_programs_of_several_processes_run_unchanged(world: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.frameworks.distributed_programs", str(world)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(said)
