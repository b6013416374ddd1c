"""How much CPU time do ``import disposescope`` and the pytest plugin cost?

The first is measured against ``import numpy``, the second by an empty pytest run.

Each row is the median of runs that alternate with those of the baseline, in fresh processes, user
and system time together. `python benchmarks/bench_import.py [ROUNDS]`
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
SCOPE = "import disposescope as ds\nwith ds.dispose_scope(): ds.ones(3)"
DETECTOR = "import disposescope as ds\nwith ds.LeakDetector(): ds.ones(3)"
# Leave out the plugins of other packages.
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
PLUGIN = "disposescope.leaks.running.pytest_plugin"


def cpu_s(command: list[str], folder: str, **variables: str) -> float:
    """Return the CPU time of a process."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def table(title: str, commands: dict[str, list[str]], rounds: int, folder: str, **variables: str) -> None:
    """Print the medians; the first row is the baseline."""
    print(f"{title:<44}{'CPU ms':>8}{'ratio':>8}")
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            seconds[name].append(cpu_s(command, folder, **variables))
    # The first round compiles bytecode and fills the caches of the system.
    medians = {name: median(found[1:]) for name, found in seconds.items()}
    baseline = next(iter(medians.values()))
    for name, found in medians.items():
        print(f"{name:<44}{found * 1000:>8.1f}{found / baseline:>8.2f}")


def main() -> None:
    """Print both tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_empty.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        imports = {
            "import numpy": "import numpy",
            "import disposescope": "import disposescope",
            "import disposescope, and a scope": SCOPE,
            "import disposescope, and a detector": DETECTOR,
        }
        table("imports", {name: [sys.executable, "-c", code] for name, code in imports.items()}, rounds, folder)
        runs = {
            "pytest, without the plugin": [*PYTEST, "-p", "no:disposescope"],
            "pytest, with the plugin": [*PYTEST, "-p", PLUGIN],
        }
        table("empty test runs", runs, rounds, folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


if __name__ == "__main__":
    main()
