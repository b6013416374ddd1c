"""Time and memory of passes that are served by a plan, by the arena's pool, and by NumPy.

Run it with ``python benchmarks/bench_workspace.py [REPETITIONS]``. Each round runs a pass in every
way, in turns; the times are medians, and the ratios are of those. Memory is the growth of the
resident set over a few passes, each way in a process of its own, as a ratio to the most bytes that
are in use at once. The programs are written in NumPy: a transformer block's inference, an image
pyramid, k-means, a training step of an MLP, and a chain of operators at several sizes, once and 75
times in a pass. A training step of PyTorch's, which is recorded and never served, is there where
PyTorch is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

import disposescope as ds

Array = NDArray[np.float32]
Program = Callable[[], float]


def transformer() -> Program:
    random = np.random.default_rng(0)
    n, d, heads = 384, 512, 8
    x = random.standard_normal((n, d), np.float32)
    wqkv, wo, w1, w2 = (
        random.standard_normal(shape, np.float32) * np.float32(0.02)
        for shape in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))
    )

    def normed(x: Array) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(1e-5))

    def run() -> float:
        q, k, v = ((normed(x) @ wqkv).reshape(n, 3, heads, d // heads)).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.float32(8.0)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        y = x + (weights @ v).transpose(1, 0, 2).reshape(n, d) @ wo
        hidden = normed(y) @ w1
        hidden = hidden / (np.float32(1.0) + np.exp(-hidden))
        return float((y + hidden @ w2).sum())

    return run


def pyramid() -> Program:
    image = np.random.default_rng(0).standard_normal((1536, 1536), np.float32)

    def run() -> float:
        levels, total = [image], 0.0
        for _ in range(4):
            x = levels[-1]
            blurred = (x[:-1:2] + x[1::2])[:, ::2] * np.float32(0.5)
            levels.append(blurred)
        for fine, coarse in itertools.pairwise(levels):
            up = np.repeat(np.repeat(coarse, 2, axis=0), 2, axis=1)
            total += float(np.abs(fine - up).sum())
        return total

    return run


def kmeans() -> Program:
    random = np.random.default_rng(0)
    points = random.standard_normal((20_000, 16), np.float32)
    start = points[:32].copy()

    def run() -> float:
        centres = start
        for _ in range(3):
            distances = (points * points).sum(1)[:, None] - 2 * points @ centres.T + (centres * centres).sum(1)
            nearest = distances.argmin(1)
            one_hot = (nearest[:, None] == np.arange(32)).astype(np.float32)
            centres = one_hot.T @ points / np.maximum(one_hot.sum(0), 1)[:, None]
        return float(centres.sum())

    return run


def mlp() -> Program:
    random = np.random.default_rng(0)
    x, target = random.standard_normal((1024, 256), np.float32), random.standard_normal((1024, 10), np.float32)
    shapes = ((256, 512), (512, 512), (512, 10))
    weights = [random.standard_normal(shape, np.float32) * np.float32(0.05) for shape in shapes]

    def run() -> float:
        values = [x]
        for weight in weights[:-1]:
            values.append(np.maximum(values[-1] @ weight, 0))
        error = values[-1] @ weights[-1] - target
        gradient, total = error * np.float32(2 / error.size), 0.0
        for weight, value in zip(reversed(weights), reversed(values), strict=True):
            total += float((value.T @ gradient).sum())
            gradient = gradient @ weight.T * (value > 0)
        return total

    return run


def chain(nbytes: int, turns: int = 1) -> Callable[[], Program]:
    def make() -> Program:
        a, b = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)

        def run() -> float:
            total = 0.0
            for _ in range(turns):
                c = a * b
                d = c + a
                e = d - b
                total += float((e * c)[0])
            return total

        return run

    return make


def training_step() -> Program:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024),
        torch.nn.GELU(),
        torch.nn.Linear(1024, 1024),
        torch.nn.GELU(),
        torch.nn.Linear(1024, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(256, 256), torch.randint(10, (256,))

    def run() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "transformer": transformer,
    "pyramid": pyramid,
    "k-means": kmeans,
    "mlp": mlp,
    **{f"chain {n >> 10} KiB": chain(n) for n in (16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20)},
    **{f"75 x {n >> 10} KiB": chain(n, 75) for n in (16 << 10, 256 << 10)},
}
WAYS = ("numpy", "pool", "slab")


def passes(way: str) -> Callable[[], AbstractContextManager[Any]]:
    if way == "numpy":
        return contextlib.nullcontext
    if way == "pool":
        return ds.dispose_scope
    return ds.Workspace("bench").run


def times(make: Callable[[], Program], repetitions: int) -> dict[str, float]:
    run = make()
    opened = {way: passes(way) for way in WAYS}
    found: dict[str, list[float]] = {way: [] for way in (*WAYS, "recording")}

    def timed(way: str, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        begin = time.perf_counter()
        with scope():
            run()
        found[way].append(time.perf_counter() - begin)

    for way in WAYS:
        for _ in range(2):
            timed(way, opened[way])
    for measured in found.values():
        measured.clear()
    for _ in range(repetitions):
        for way in WAYS:
            timed(way, opened[way])
        # A recording without the plan at its end, which is made once.
        recorder = ds.Workspace("records").run()
        with recorder:
            begin = time.perf_counter()
            run()
            found["recording"].append(time.perf_counter() - begin)
    return {way: statistics.median(measured) for way, measured in found.items()}


def resident_nbytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(name: str, way: str) -> None:
    """Print the growth of the resident set, and the bound, of one program served in one way."""
    run = PROGRAMS[name]()
    workspace = ds.Workspace("measured")
    with workspace.run():
        run()
    bound = workspace.peak().nbytes
    workspace.forget()
    ds.empty_cache()
    before = resident_nbytes()
    scope = passes(way)
    for _ in range(4):
        with scope():
            run()
    # What the pool caches, and the slab, stay between passes: that is what a loop needs.
    print(resident_nbytes() - before, bound)


def memory(name: str, way: str) -> float:
    command = [sys.executable, __file__, "--memory", name, way]
    grown, bound = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(grown) / int(bound)


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2], sys.argv[3])
        return
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    print(f"{'':>16} {'numpy':>10} {'pool':>10} {'slab':>10} {'slab/pool':>10} {'slab/numpy':>10} {'recording':>10}")
    for name, make in PROGRAMS.items():
        found = times(make, repetitions)
        row = [f"{found[way] * 1e3:8.3f}ms" for way in WAYS]
        ratios = [found["slab"] / found["pool"], found["slab"] / found["numpy"], found["recording"] / found["pool"]]
        print(f"{name:>16}", *row, *(f"{ratio:10.3f}" for ratio in ratios), flush=True)
    if importlib.util.find_spec("torch") is not None:
        found = times(training_step, repetitions)
        print("\ntraining step of PyTorch's")
        print(f"{'plain':>10} {'scope':>10} {'recording':>10} {'recording/scope':>16} {'recording/plain':>16}")
        shown = [f"{found[way] * 1e3:8.3f}ms" for way in ("numpy", "pool", "recording")]
        over_scope, over_plain = (found["recording"] / found[way] for way in ("pool", "numpy"))
        print(*shown, f"{over_scope:16.3f} {over_plain:16.3f}", flush=True)
    print("\nresident memory over the most bytes in use at once")
    print(f"{'':>16} {'pool':>10} {'slab':>10}")
    for name in ("transformer", "pyramid", "k-means", "mlp"):
        print(f"{name:>16}", *(f"{memory(name, way):10.3f}" for way in ("pool", "slab")), flush=True)


if __name__ == "__main__":
    main()
