"""What the arena gains: ``(a * 2 + b - 1) / 3`` by plain NumPy, in a scope, and by hand-written ``out=``, by size."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import disposescope as ds

SIZES = sorted({64 << shift for shift in range(0, 23, 2)} | {512 << 10, 2 << 20, 32 << 20})
"""Bytes of one array: 64 B to 256 MiB, most by factors of four."""


def plain(a: Any, b: Any) -> Any:
    return (a * 2 + b - 1) / 3


def written_out(a: Any, b: Any, result: Any, scratch: Any) -> Any:
    np.multiply(a, 2, out=scratch)
    np.add(scratch, b, out=scratch)
    np.subtract(scratch, 1, out=scratch)
    return np.divide(scratch, 3, out=result)


def seconds(run: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        result = run()
        del result
    return (time.perf_counter() - start) / times


def medians(sides: dict[str, Callable[[], Any]], nbytes: int) -> dict[str, float]:
    """The median of each side; they take turns."""
    times = max(1, min(2000, (4 << 20) // nbytes))
    rounds = 9 if nbytes >= 16 << 20 else 41
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            if name == "scope":
                with ds.dispose_scope():
                    seconds(run, 1)
                    taken[name].append(seconds(run, times))
            else:
                seconds(run, 1)
                taken[name].append(seconds(run, times))
    return {name: statistics.median(values) for name, values in taken.items()}


def compare(nbytes: int) -> dict[str, float]:
    count = nbytes // 4
    rng = np.random.default_rng(0)
    a, b = rng.random(count, dtype="float32"), rng.random(count, dtype="float32")
    result, scratch = np.empty_like(a), np.empty_like(a)
    with ds.dispose_scope():
        np.testing.assert_array_equal(plain(a, b), written_out(a, b, result, scratch))
    return medians(
        {
            "plain": lambda: plain(a, b),
            "scope": lambda: plain(a, b),
            "out=": lambda: written_out(a, b, result, scratch),
        },
        nbytes,
    )


@pytest.mark.parametrize("nbytes", SIZES)
def test_expression(nbytes: int, record_property: Callable[[str, object], None]) -> None:
    gc.collect()
    for name, taken in compare(nbytes).items():
        record_property(name, taken)


def main() -> None:
    print("      bytes    plain us    scope us     out= us   plain/scope   scope/out=")
    for nbytes in SIZES:
        taken = {name: value * 1e6 for name, value in compare(nbytes).items()}
        print(
            f"{nbytes:>11}  {taken['plain']:>10.2f}  {taken['scope']:>10.2f}  {taken['out=']:>10.2f}"
            f"  {taken['plain'] / taken['scope']:>12.2f}  {taken['scope'] / taken['out=']:>11.2f}"
        )


if __name__ == "__main__":
    main()
