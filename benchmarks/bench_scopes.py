"""What do opening and closing an empty scope, and recording a birth, cost?

Both sides of each pair in one run.
"""

from __future__ import annotations

import contextlib
import statistics
import timeit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

import disposescope as ds
from disposescope.scopes.kinds import Kind, add_kind
from disposescope.scopes.ownership import born
from disposescope.tensors.tensor.tensor import unborn, wrap


class Plain:
    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value = 0


class Tracked:
    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value = 0
        born(self, TRACKED)


def _release(tracked: Tracked) -> None:
    tracked.value = -1


class TrackedKind(Kind):
    cls = Tracked
    name = "Tracked"
    release = staticmethod(_release)


TRACKED = TrackedKind()
add_kind(TRACKED)


def empty_scope() -> None:
    with ds.dispose_scope():
        pass


def empty_exit_stack() -> None:
    with contextlib.ExitStack():
        pass


@pytest.mark.benchmark(group="empty with")
@pytest.mark.parametrize("enter", [empty_scope, empty_exit_stack])
def test_empty_with(benchmark: Callable[..., None], enter: Callable[[], None]) -> None:
    benchmark(enter)


@pytest.mark.benchmark(group="create and drop")
@pytest.mark.parametrize("create", [Tracked, Plain])
def test_birth_and_death_by_reference_count(benchmark: Callable[..., None], create: type) -> None:
    with ds.dispose_scope():
        benchmark(create)


@pytest.mark.benchmark(group="birth and release of many")
@pytest.mark.parametrize("count", [1_000, 10_000, 100_000])
def test_release_is_linear(benchmark: Callable[..., None], count: int) -> None:
    def block() -> None:
        with ds.dispose_scope():
            held = [Tracked() for _ in range(count)]
        assert held[0].value == -1

    benchmark(block)


def main(rounds: int = 200, number: int = 1000) -> None:
    """Print the medians of the pairs of this file, which run in turns."""
    times: dict[str, list[float]] = {}
    sides = {"empty scope": empty_scope, "empty ExitStack": empty_exit_stack, "ds.Tensor": birth, "its floor": no_birth}
    with contextlib.ExitStack() as stack:
        for _ in range(rounds):
            for name, side in sides.items():
                if name == "ds.Tensor":
                    stack.enter_context(ds.dispose_scope())
                times.setdefault(name, []).append(timeit.timeit(side, number=number) / number * 1e6)
            stack.close()
    for name, taken in times.items():
        print(f"{name:>16}: {statistics.median(taken):.3f} us, fastest {min(taken):.3f}")
    for columns in (16, 64, 512):
        ratios = [
            seconds_of_batches(columns, ds.dispose_scope) / seconds_of_batches(columns, nullcontext)
            for _ in range(rounds // 10)
        ]
        print(f"a generator with a scope for each batch of 32 x {columns}: {statistics.median(ratios):.3f} times")


def seconds_of_batches(columns: int, block: Callable[[], AbstractContextManager[object]]) -> float:
    return timeit.timeit(lambda: sum(sums_of_batches(columns, block)), number=1)


def sums_of_batches(columns: int, block: Callable[[], AbstractContextManager[object]]) -> Iterator[float]:
    """Yield a number for each of 300 batches, computed in a block that the generator suspends."""
    random = np.random.default_rng(0)
    ones = np.ones((columns, 8))
    for _ in range(300):
        with block():
            batch = random.standard_normal((32, columns))
            centred = (batch - batch.mean(0)) / (batch.std(0) + 1e-6)
            clipped = np.clip(centred, -3, 3) * 0.5 + 0.1
            yield float((np.where(clipped > 0, clipped, 0) @ ones).sum())


ARRAY = np.zeros(3)


def birth() -> object:
    return wrap(ARRAY)


def no_birth() -> object:
    return unborn(ARRAY)


if __name__ == "__main__":
    main()
