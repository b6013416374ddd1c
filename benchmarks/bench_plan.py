"""Heights of plans after 50 ms and after 10 s, beside those of greedy plans by size.

A height is printed as its ratio to the most bytes that live at once.

Run it with ``python benchmarks/bench_plan.py [SECONDS]``. The instances are those in ``plans``, and
made ones: 1,000 and 28,000 buffers.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import disposescope as ds
from disposescope.planner.table import read_table


def greedy_by_size(buffers: NDArray[np.int64]) -> int:
    """Return the height of the plan that puts buffers, from large to small, as low as they fit."""
    placed: list[tuple[int, int, int, int]] = []
    for lower, upper, size in sorted(buffers.tolist(), key=lambda buffer: -buffer[2]):
        lowest = 0
        for offset, end, other_lower, other_upper in sorted(placed):
            if other_lower < upper and lower < other_upper:
                if offset - lowest >= size:
                    break
                lowest = max(lowest, end)
        placed.append((lowest, lowest + size, lower, upper))
    return max(end for _, end, _, _ in placed)


def made(count: int, *, uniform: bool) -> NDArray[np.int64]:
    """Lives that begin evenly; sizes and widths are uniform, or most are small and few large."""
    random = np.random.default_rng(count)
    lower = random.integers(0, 2 * count, count)
    width = random.integers(1, 200, count) if uniform else 1 + random.exponential(100, count).astype(int)
    size = 64 * (random.integers(1, 1000, count) if uniform else 1 + random.pareto(1.1, count).astype(int))
    return np.stack([lower, lower + width, size], axis=1)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    instances = {
        file.name[0]: read_table(file).buffers for file in sorted(Path(__file__).with_name("plans").glob("*.csv"))
    }
    for count in (1_000, 28_000):
        instances[f"{count:,} uniform"] = made(count, uniform=True)
        instances[f"{count:,} uneven"] = made(count, uniform=False)
    print(f"{'instance':>16} {'greedy':>8} {'50 ms':>8} {'took':>7} {f'{seconds:g} s':>8} {'took':>7}")
    for name, buffers in instances.items():
        row = [f"{name:>16}"]
        bound = ds.plan(buffers, time_limit=0).lower_bound
        row.append(f"{greedy_by_size(buffers) / bound:8.4f}" if len(buffers) < 2_000 else " " * 8)
        for limit in (0.05, seconds):
            begin = time.perf_counter()
            found = ds.plan(buffers, time_limit=limit)
            row += [f"{found.height / bound:8.4f}", f"{time.perf_counter() - begin:6.2f}s"]
        print(*row, flush=True)


if __name__ == "__main__":
    main()
