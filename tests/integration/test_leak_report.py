"""`leak-report run` on the example of five leaks: the whole text, with what varies from run to run made equal."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAKY = ROOT / "docs" / "examples" / "leaky.py"

EXPECTED = """\
leak-report: 9 leaks at 5 sites, 21.6 MB pinned, worst first

  1. growth (possible): 3 × Tensor float32 (1000, 1000), 12.0 MB, alive
     born at leaky.py:{list} in keep_in_a_list(), in scope 'step', AGO
     held by module __main__.HISTORY[0]

  2. growth (possible): 3 × Tensor float32 (500, 1000), 6.0 MB, alive
     born at leaky.py:{closure} in keep_in_a_closure(), in scope 'step', AGO
     held by module __main__.HOOKS[0], closure of mean_of() at leaky.py:{hook}, cell 'batch'

  3. cycle (certain): 1 × Tensor float32 (400, 1000), 1.6 MB, alive
     born at leaky.py:{cycle} in keep_in_a_cycle(), outside every scope, AGO
     held by cycle: Trainer.on_step.__self__ -> Trainer, holds .batch, until the next gc.collect()

  4. exception (certain): 1 × Tensor float32 (300, 1000), 1.2 MB, alive
     born at leaky.py:{exception} in fail_on_a_batch(), outside every scope, AGO
     held by module __main__.last_error.__traceback__ frame leaky.py:{fail} fail_on_a_batch(): local 'batch'

  5. view (likely): 1 × Tensor float32 (10,), 800.0 kB, alive
     born at leaky.py:{view} in keep_a_view(), outside every scope, AGO
     view: 40 bytes used, 800.0 kB pinned
     held by module __main__.PREVIEWS[0]

memory at the end: SOME resident, SOME in use by tensors, SOME kept by allocators for later use
"""

WORDS = {
    "list": "batch = ds.ones((1000, 1000)",
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


def run(*args: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "disposescope.leaks.commands", "run", *args],
        cwd=LEAKY.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_each_of_the_five_leaks_is_told_with_its_line_and_holder() -> None:
    done = run("--fail-on", "any", str(LEAKY))
    assert (done.returncode, done.stdout) == (3, "trained to 200,000\n")
    told = re.sub(r"\d+\.\d s and \d+ closed scopes? ago", "AGO", done.stderr)
    told = re.sub(r"\(\) by \w+,", "(),", told)
    told = re.sub(r"\d+\.\d [kM]B (resident|in use|kept)", r"SOME \1", told)
    assert told == EXPECTED.format(**lines_of_the_example())


def test_the_main_example_has_no_leaks() -> None:
    done = run("--fail-on", "any", str(LEAKY.parent / "stdlib_sequences.py"), "--limit-files", "3")
    assert done.returncode == 0
    assert done.stderr == "leak-report: no leaks\n"
