"""Run sides of one case of bench_arena.py, and print the seconds of each round and peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Step = Callable[[], Any]

# ---------------------------------------------------------------------- the expression


@functools.cache
def operands(count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random(count, dtype="float32"), rng.random(count, dtype="float32")


def expression(nbytes: int, side: str) -> Step:
    a, b = operands(nbytes // 4)

    def plain() -> Any:
        return (a * 2 + b - 1) / 3

    def in_place() -> Any:
        scratch = a * 2
        np.add(scratch, b, out=scratch)
        result = scratch - 1
        del scratch
        return result / 3

    if not side.startswith("out="):
        return in_place if side == "scope in place" else plain
    result, scratch = np.empty_like(a), np.empty_like(a)

    def written_out() -> Any:
        np.multiply(a, 2, out=scratch)
        np.add(scratch, b, out=scratch)
        np.subtract(scratch, 1, out=scratch)
        return np.divide(scratch, 3, out=result)

    def as_numpy_does() -> Any:
        # From 256 KiB on NumPy evaluates `+ b` in place by itself, but no step with a Python
        # number.
        np.multiply(a, 2, out=scratch)
        np.add(scratch, b, out=scratch)
        np.subtract(scratch, 1, out=result)
        return np.divide(result, 3, out=scratch)

    step = written_out if side == "out=" else as_numpy_does
    np.testing.assert_array_equal(step(), plain())
    return step


def empty(nbytes: int, side: str) -> Step:
    count = nbytes // 8
    return lambda: np.empty(count)


# ---------------------------------------------------------------------- programs


def kmeans() -> Step:
    """Return one round of Lloyd's algorithm: 20,000 points, 16 dimensions, 32 centres."""
    points = np.random.default_rng(0).random((20_000, 16), dtype="float32")
    centres = [points[:32].copy()]

    def step() -> Any:
        at = centres[0]
        distances = (points**2).sum(axis=1)[:, None] - 2 * points @ at.T + (at**2).sum(axis=1)
        labels = distances.argmin(axis=1)
        counts = np.maximum(np.bincount(labels, minlength=32), 1)
        sums = [np.bincount(labels, weights=points[:, d], minlength=32) for d in range(16)]
        centres[0] = (np.stack(sums, axis=1) / counts[:, None]).astype("float32")

    return step


def image_pyramid() -> Step:
    """Return Gaussian and Laplacian pyramids of a picture, and the picture rebuilt from them.

    The picture has shape (1024, 1024, 3) and dtype float32.
    """
    picture = np.random.default_rng(0).random((1024, 1024, 3), dtype="float32")

    def blurred(image: Any) -> Any:
        for axis in (0, 1):
            p = np.pad(image, [(2, 2) if a == axis else (0, 0) for a in range(3)], mode="edge")
            n = image.shape[axis]
            parts = [p[k : k + n] if axis == 0 else p[:, k : k + n] for k in range(5)]
            image = (parts[0] + parts[4] + 4 * (parts[1] + parts[3]) + 6 * parts[2]) / 16
        return image

    def step() -> Any:
        level, details = picture, []
        for _ in range(5):
            smaller = blurred(level)[::2, ::2]
            details.append(level - smaller.repeat(2, axis=0).repeat(2, axis=1))
            level = smaller
        for detail in reversed(details):
            level = level.repeat(2, axis=0).repeat(2, axis=1) + detail
        assert abs(float(level[0, 0, 0] - picture[0, 0, 0])) < 1e-4

    return step


def mlp() -> Step:
    """Return a training step of a perceptron 784-512-512-10 on a batch of 512."""
    rng = np.random.default_rng(0)
    x = rng.random((512, 784), dtype="float32")
    target = rng.integers(0, 10, 512)
    sizes = (784, 512, 512, 10)
    weights = [(rng.standard_normal((m, n)) / m**0.5).astype("float32") for m, n in itertools.pairwise(sizes)]
    biases = [np.zeros(n, "float32") for n in sizes[1:]]

    def step() -> Any:
        activations = [x]
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            z = activations[-1] @ w + b
            activations.append(np.maximum(z, 0) if i < 2 else z)
        logits = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        gradient = probabilities.copy()
        gradient[np.arange(512), target] -= 1
        gradient /= 512
        for i in (2, 1, 0):
            change = activations[i].T @ gradient
            shift = gradient.sum(axis=0)
            if i:
                gradient = (gradient @ weights[i].T) * (activations[i] > 0)
            weights[i] -= 0.01 * change
            biases[i] -= 0.01 * shift

    return step


def pandas_calls() -> Step:
    """Return arithmetic, groupby, merge, rolling mean and sorting of a table of 200,000 rows."""
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"key": rng.integers(0, 500, 200_000), "a": rng.random(200_000), "b": rng.random(200_000)},
    )
    names = pd.DataFrame({"key": np.arange(500), "weight": rng.random(500)})

    def step() -> Any:
        more = table.assign(c=(table.a * 2 + table.b - 1) / 3, d=table.a.rolling(10).mean())
        joined = more.merge(names, on="key")
        return (joined.groupby("key").mean() * 2).sort_values("c").describe()

    return step


def sklearn_calls() -> Step:
    """Return scaling, PCA, ridge regression and nearest neighbours on 5,000 rows of 40 columns."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    rng = np.random.default_rng(0)
    x = rng.random((5_000, 40))
    y = x @ rng.random(40) + rng.random(5_000)

    def step() -> Any:
        model = make_pipeline(StandardScaler(), PCA(12), PolynomialFeatures(2), Ridge())
        return model.fit(x, y).predict(x)

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "k-means": kmeans,
    "image pyramid": image_pyramid,
    "perceptron": mlp,
    "pandas": pandas_calls,
    "scikit-learn": sklearn_calls,
}

# ---------------------------------------------------------------------- sides


@contextlib.contextmanager
def numpy_allocator() -> Iterator[None]:
    """Use the package numpy-allocator, over mimalloc if ARENA_MIMALLOC names it."""
    import numpy_allocator

    path = os.environ.get("ARENA_MIMALLOC")
    library, prefix = (ctypes.CDLL(path), "mi_") if path else (ctypes.CDLL(None), "")
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    members = {
        "_malloc_": ctypes.CFUNCTYPE(pointer, size)((f"{prefix}malloc", library)),
        "_calloc_": ctypes.CFUNCTYPE(pointer, size, size)((f"{prefix}calloc", library)),
        "_realloc_": ctypes.CFUNCTYPE(pointer, pointer, size)((f"{prefix}realloc", library)),
        "_free_": ctypes.CFUNCTYPE(None, pointer)((f"{prefix}free", library)),
    }
    with numpy_allocator.type("allocator", (numpy_allocator.object,), members):
        yield


def timed(step: Step, times: int) -> float:
    # Count the time of this process alone, as other programs may run on the machine.
    start = time.process_time()
    for _ in range(times):
        result = step()
        del result
    return (time.process_time() - start) / times


def rounds_of(step: Step, rounds: int, times: int) -> list[float]:
    timed(step, max(1, times // 4))
    return [timed(step, times) for _ in range(rounds)]


def rounds_of_all(case: str, nbytes: int, sides: list[str], lasting_s: float) -> dict[str, list[float]]:
    """Return the seconds of all sides, run in one process in turns."""
    import disposescope as ds

    steps = {side: {"expression": expression, "empty": empty}[case](nbytes, side) for side in sides}
    times = max(1, min(2000, (1 << 20) // nbytes))
    taken: dict[str, list[float]] = {side: [] for side in sides}
    end = time.perf_counter() + lasting_s
    order = random.Random(0)
    while time.perf_counter() < end or not taken["plain"]:
        # Vary the order of the sides, and do not count the first step, whose caches the side before
        # filled.
        for side in order.sample(sides, len(sides)):
            with ds.dispose_scope() if side.startswith("scope") else contextlib.nullcontext():
                steps[side]()
                taken[side].append(timed(steps[side], times))
    return taken


def peak_nbytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def main(case: str, size: str, side: str) -> None:
    # Import everything before the measurement, on every side.
    import disposescope as ds

    nbytes = int(size)
    if "," in side:
        print(json.dumps(rounds_of_all(case, nbytes, side.split(","), 2.0)))
        return
    if case in PROGRAMS:
        step, rounds, times = PROGRAMS[case](), 15, 1

        def scoped() -> Any:
            with ds.dispose_scope():
                return step()

        taken = rounds_of(scoped if side == "scope" else step, rounds, times) if side != "numpy-allocator" else []
    else:
        step = {"expression": expression, "empty": empty}[case](nbytes, side)
        rounds, times = (9, 1) if nbytes >= 16 << 20 else (31, max(1, min(2000, (4 << 20) // max(nbytes, 1))))
        taken = []
    if not taken:
        served: Any = contextlib.nullcontext()
        if side == "scope":
            served = ds.dispose_scope()
        elif side == "numpy-allocator":
            served = numpy_allocator()
        with served:
            taken = rounds_of(step, rounds, times)
    print(json.dumps({"seconds": taken, "peak_nbytes": peak_nbytes()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
