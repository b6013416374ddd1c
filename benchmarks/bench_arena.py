"""How much faster is NumPy code with the arena?

The cases are ``(a * 2 + b - 1) / 3`` by size, and programs, beside ``out=`` and other allocators.

Each side runs in fresh processes of its own, in turns: so a program would start, for the C library
learns from what a process frees. The table shows medians of all rounds of all processes. Peers are
jemalloc and mimalloc, where ARENA_JEMALLOC and ARENA_MIMALLOC name their shared libraries, and the
package numpy-allocator, where it is installed; programs that call pandas and scikit-learn are
measured where these are. In a terminal:

    python benchmarks/bench_arena.py [all | expression | programs] [processes]
    python benchmarks/bench_arena.py pairs [processes]
    python benchmarks/bench_arena.py counts

The second has plain NumPy, scope and ``out=`` alternate in one process, a fresh one for each size,
and shows medians of the ratios within a round: what a busy machine does to one of them it does to
its neighbours as well. "in place" is the expression in a scope with ``+ b`` written as
``np.add(t, b, out=t)``, for which NumPy needs not look at the call stack. The third shows what a
birth, a death and leaving a scope cost by the number of arrays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WORKER = Path(__file__).with_name("arena_worker.py")
SIZES = sorted({64 << shift for shift in range(0, 23, 2)} | {512 << 10, 2 << 20, 32 << 20})
"""Bytes of one array: 64 B to 256 MiB, most by factors of four."""
PROGRAMS = {"k-means": None, "image pyramid": None, "perceptron": None, "pandas": "pandas", "scikit-learn": "sklearn"}
"""Programs, and the package that each needs."""
FLOORS = {
    "out=": "hand-written, one scratch array",
    "out= as is": "hand-written, the passes that NumPy makes of the expression",
}
PRELOADED = {"jemalloc": "ARENA_JEMALLOC", "mimalloc": "ARENA_MIMALLOC"}


@dataclass(frozen=True)
class Taken:
    """The median seconds of a step, and the peak resident memory of the processes."""

    seconds: float
    peak_nbytes: int


def peers() -> dict[str, str]:
    """Return the other allocators that are installed, and the library to preload for each."""
    found = {name: os.environ[variable] for name, variable in PRELOADED.items() if variable in os.environ}
    if importlib.util.find_spec("numpy_allocator") is not None:
        found["numpy-allocator"] = ""
    return found


def told_by(case: str, nbytes: int, side: str) -> Any:
    preloaded = os.environ.get(PRELOADED.get(side, ""), "")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LD_PRELOAD": preloaded}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(WORKER.parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    answer = subprocess.run(
        [sys.executable, str(WORKER), case, str(nbytes), side], env=environment, capture_output=True, text=True
    )
    if answer.returncode:
        raise RuntimeError(f"{case}, {nbytes} bytes, {side}: {answer.stderr}")
    return json.loads(answer.stdout)


def run(case: str, nbytes: int, side: str) -> tuple[list[float], int]:
    told = told_by(case, nbytes, side)
    return told["seconds"], told["peak_nbytes"]


def pairs(case: str, nbytes: int, sides: list[str], processes: int) -> dict[str, list[float]]:
    """Return seconds by side; equal places in the lists are of the same round."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(processes):
        for side, taken in told_by(case, nbytes, ",".join(sides)).items():
            seconds[side] += taken
    return seconds


def compare(case: str, nbytes: int, sides: list[str], processes: int) -> dict[str, Taken]:
    """Return the medians of all sides, which run in turns."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    peaks: dict[str, list[int]] = {side: [] for side in sides}
    for process in range(processes):
        for side in sides if process % 2 == 0 else reversed(sides):
            taken, peak = run(case, nbytes, side)
            seconds[side] += taken
            peaks[side].append(peak)
    return {side: Taken(statistics.median(seconds[side]), int(statistics.median(peaks[side]))) for side in sides}


def record(taken: dict[str, Taken], record_property: Callable[[str, object], None]) -> None:
    for side, figures in taken.items():
        record_property(f"{side} seconds", figures.seconds)
        record_property(f"{side} peak_nbytes", figures.peak_nbytes)


@pytest.mark.parametrize("nbytes", SIZES)
def test_expression(nbytes: int, record_property: Callable[[str, object], None]) -> None:
    record(compare("expression", nbytes, ["plain", "scope", *FLOORS], 1), record_property)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, record_property: Callable[[str, object], None]) -> None:
    needed = PROGRAMS[program]
    if needed is not None:
        pytest.importorskip(needed)
    record(compare(program, 0, ["plain", "scope"], 1), record_property)


def show(sides: list[str], rows: Iterator[tuple[str, dict[str, Taken]]]) -> None:
    """Print a row for each case: times of plain NumPy, the others as shares of it, and peaks."""
    peaks = [f"peak: {side}" for side in sides]
    print(f"| case | plain | {' | '.join(sides)} | scope / out= | {' | '.join(peaks)} |")
    print("|---" * (2 * len(sides) + 3) + "|")
    for name, taken in rows:
        plain, floor = taken["plain"], taken.get("out=")
        times = [f"{taken[side].seconds / plain.seconds:.3f}" for side in sides]
        peaks = [f"{taken[side].peak_nbytes / plain.peak_nbytes:.2f}" for side in sides]
        over = f"{taken['scope'].seconds / floor.seconds:.2f}" if floor else ""
        shown = [name, f"{plain.seconds * 1e6:.2f} us", *times, over, *peaks]
        print(f"| {' | '.join(shown)} |", flush=True)


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def show_pairs(processes: int) -> None:
    ratios = "scope / plain | scope / out= | scope / as is | as is / out= | as is / plain | in place / as is"
    print(f"| case | plain | {ratios} |")
    print("|---" * 8 + "|")
    for name, case, size in [("np.empty(16)", "empty", 128), *((f"{size:,} B", "expression", size) for size in SIZES)]:
        others = [*FLOORS, "scope in place"] if case == "expression" else []
        taken = pairs(case, size, ["plain", "scope", *others], processes)
        shown = [f"{ratio(taken['scope'], taken['plain']):.3f}"]
        if others:
            shown += [f"{ratio(taken['scope'], taken[floor]):.3f}" for floor in FLOORS]
            shown += [f"{ratio(taken['out= as is'], taken[other]):.3f}" for other in ("out=", "plain")]
            shown += [f"{ratio(taken['scope in place'], taken['out= as is']):.3f}"]
        print(f"| {name} | {statistics.median(taken['plain']) * 1e6:.2f} us | {' | '.join(shown)} |", flush=True)


def seconds_by_count(what: str, count: int) -> list[float]:
    """Return the seconds of leaving a scope, or of a birth and a death, by number of arrays."""
    import disposescope as ds

    def birth_and_death(times: int) -> None:
        for _ in range(times):
            np.empty(100, "u1")

    taken = []
    for _ in range(9):
        with ds.dispose_scope(), ds.dispose_scope() as scope:
            held = [np.empty(100, "u1") for _ in range(1 if what == "born" else count)]
            birth_and_death(count if what == "born" else 1)
            for _ in range(20):  # what lies long ago in the caches of the processor is no part of it
                with ds.dispose_scope():
                    birth_and_death(1)
            start = time.perf_counter()
            birth_and_death(1000) if what == "beside" else scope.close()
            taken.append((time.perf_counter() - start) / (1000 if what == "beside" else 1))
            del held
    return taken


def show_counts() -> None:
    counts = (1, 1_000, 100_000, 1_000_000)
    print(f"| | {' | '.join(f'{count:,}' for count in counts)} |")
    print("|---" * (len(counts) + 1) + "|")
    for what, shown in (
        ("born", "leaving a scope in which so many arrays were born and freed"),
        ("alive", "leaving one in which so many are alive"),
        ("beside", "a birth and a death beside so many that are alive"),
    ):
        medians = [statistics.median(seconds_by_count(what, count)) for count in counts]
        print(f"| {shown} | {' | '.join(f'{seconds * 1e6:.2f} us' for seconds in medians)} |", flush=True)


def main(what: str = "all", processes: str = "3") -> None:
    others, times = list(peers()), int(processes)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}; peers: {', '.join(others) or 'none'}\n")
    if what == "pairs":
        show_pairs(times)
        return
    if what == "counts":
        show_counts()
        return
    if what != "programs":
        sides = ["scope", *FLOORS, *others]
        cases = [("np.empty(16)", "empty", 128), *((f"{size:,} B", "expression", size) for size in SIZES)]
        show(sides, ((name, compare(case, size, ["plain", *sides], times)) for name, case, size in cases))
    if what != "expression":
        missing = {name: needed for name, needed in PROGRAMS.items() if needed and not importlib.util.find_spec(needed)}
        for name, needed in missing.items():
            print(f"{name}: NOT MEASURED, {needed} is not installed\n")
        sides = ["scope", *others]
        show(sides, ((n, compare(n, 0, ["plain", *sides], times)) for n in PROGRAMS if n not in missing))


if __name__ == "__main__":
    main(*sys.argv[1:])
