"""`leak-report run` on the example of five leaks: its whole text, with what varies made equal."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEAKY = ROOT / "docs" / "examples" / "leaky.py"
KEPT = "written to leak-report.json; to see it as a page: leak-report html\n"

EXPECTED = """\
leak-report: 5 leaks, 9 tensors, 21.6 MB
     HISTORY (list, 3 items) retains 12.0 MB born at leaky.py:{list}; it is added to at leaky.py:{append}

  1. growth (possible): 3 × Tensor float32 (1000, 1000), 12.0 MB
     born at leaky.py:{list} in keep_in_a_list(), in scope 'step', AGO
     held by module __main__.HISTORY[0]
     do: clear the holder, or bound it

  2. growth (possible): 3 × Tensor float32 (500, 1000), 6.0 MB
     born at leaky.py:{closure} in keep_in_a_closure(), in scope 'step', AGO
     held by module __main__.HOOKS[0], closure of mean_of() at leaky.py:{hook}, cell 'batch'
     do: clear the holder, or bound it

  3. cycle (certain): 1 × Tensor float32 (400, 1000), 1.6 MB
     born at leaky.py:{cycle} in keep_in_a_cycle(), outside every scope, AGO
     held by cycle: Trainer.on_step.__self__ -> Trainer, holds .batch, until the next gc.collect()
     do: break the cycle, for example with weakref.ref

  4. exception (likely): 1 × Tensor float32 (300, 1000), 1.2 MB
     born at leaky.py:{exception} in fail_on_a_batch(), outside every scope, AGO
     held by module __main__.last_error.__traceback__ frame leaky.py:{fail} fail_on_a_batch(): local 'batch'
     do: keep its text, or set its __traceback__ to None

  5. view (likely): 1 × Tensor float32 (10,), 800.0 kB
     born at leaky.py:{view} in keep_a_view(), outside every scope, AGO
     view: 40 bytes used, 800.0 kB pinned
     held by module __main__.PREVIEWS[0]
     do: keep a copy of what is used

memory at the end: SOME resident, SOME in use by tensors, SOME kept by allocators for later use
"""

WORDS = {
    "list": "batch = ds.ones((1000, 1000)",
    "append": "HISTORY.append",
    "closure": "ds.ones((500, 1000)",
    "hook": "def report_mean",
    "cycle": "Trainer(ds.ones((400, 1000)",
    "exception": "batch = ds.ones((300, 1000)",
    "fail": "raise ValueError",
    "view": "PREVIEWS.append(",
}


def lines_of_the_example() -> dict[str, int]:
    source = LEAKY.read_text().splitlines()
    found = {name: [number for number, line in enumerate(source, 1) if words in line] for name, words in WORDS.items()}
    assert all(len(numbers) == 1 for numbers in found.values()), found
    return {name: numbers[0] for name, numbers in found.items()}


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    for example in LEAKY.parent.glob("*.py"):
        shutil.copy(example, folder)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "disposescope.leaks.commands", "run", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_of_the_five_leaks_is_reported_with_its_line_and_holder(tmp_path: Path) -> None:
    done = run(tmp_path, "--fail-on", "any", LEAKY.name)
    assert (done.returncode, done.stdout) == (3, "trained to 200,000\n")
    told = re.sub(r"\d+\.\d s and \d+ closed scopes? ago", "AGO", done.stderr)
    told = re.sub(r"\(\) by \w+,", "(),", told)
    told = re.sub(r"\d+\.\d [kM]B (resident|in use|kept)", r"SOME \1", told)
    assert told == EXPECTED.format(**lines_of_the_example()) + KEPT


def test_the_main_example_has_no_leaks(tmp_path: Path) -> None:
    done = run(tmp_path, "--fail-on", "any", "stdlib_sequences.py", "--limit-files", "3")
    assert done.returncode == 0
    assert done.stderr == f"leak-report: no leaks\n{KEPT}"


@pytest.mark.long
@pytest.mark.unmeasured
def test_a_loop_that_keeps_its_losses_is_told_from_its_mended_form(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the loop is PyTorch's")
    done = run(tmp_path, "--fail-on", "any", "growing_loop.py")
    assert (done.returncode, done.stdout) == (3, "100 steps\n")
    assert "leak-report: 1 leak, 200 tensors, 105.0 MB\n" in done.stderr
    for said in ("graph (certain): 200 × torch.Tensor", "born at growing_loop.py:18 by model", "grows by 2 and 1.0 MB"):
        assert said in done.stderr
    assert "held by the graph of module __main__.losses[0] (99 steps)" in done.stderr

    mended = (tmp_path / "growing_loop.py").read_text().replace(".mean())", ".mean().item())")
    (tmp_path / "growing_loop.py").unlink()
    (tmp_path / "mended.py").write_text(mended)
    done = run(tmp_path, "--fail-on", "any", "mended.py")
    assert done.returncode == 0
    assert done.stderr.startswith("leak-report: no leaks; 5.3 MB alive in the end")


def test_a_cache_of_a_service_is_named_with_the_line_that_adds_to_it(tmp_path: Path) -> None:
    done = run(tmp_path, "growing_service.py")
    assert done.stdout == "the answers add up to 15,031\n"
    assert "CACHE (dict, 200 items) retains 25.6 MB born at growing_service.py:14" in done.stderr
    assert "it is added to at growing_service.py:20" in done.stderr
