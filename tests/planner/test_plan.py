"""Plans of memory: sound, never above the greedy plan by size, and lowest where that is known."""

from __future__ import annotations

import itertools
import math
import signal
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import disposescope as ds

lives = st.tuples(st.integers(0, 12), st.integers(1, 8)).map(lambda life: (life[0], life[0] + life[1]))
buffers_of = st.builds(lambda life, size: (*life, size), lives, st.integers(0, 40))


def offsets_by_order(buffers: Any) -> list[int]:
    """The offsets where each buffer in turn is put at the lowest place where it fits."""
    placed: list[tuple[int, int, int, int]] = []
    offsets = []
    for lower, upper, size in buffers:
        lowest = 0
        for offset, end, other_lower, other_upper in sorted(placed):
            if size and other_lower < upper and lower < other_upper:
                if offset - lowest >= size:
                    break
                lowest = max(lowest, end)
        offsets.append(lowest)
        if size:
            placed.append((lowest, lowest + size, lower, upper))
    return offsets


def height_by_order(buffers: Any) -> int:
    offsets = offsets_by_order(buffers)
    return max((offset + size for offset, (_, _, size) in zip(offsets, buffers, strict=True) if size), default=0)


def height_lowest_first(buffers: Any) -> int:
    """The height where the buffer comes next that can lie lowest.

    Of several the one that lives when most bytes do, then the one that lives longest.
    """
    lower, upper, sizes = np.array(buffers).T
    are_alive = (lower <= lower[:, None]) & (lower[:, None] < upper)
    totals = np.where(are_alive, (are_alive * sizes).sum(axis=1)[:, None], 0).max(axis=0)
    waiting = np.lexsort((-(upper - lower) * sizes, lower - upper, -totals))
    ends, lowest = [], np.zeros_like(sizes)
    while len(waiting):
        at = lowest[waiting].argmin()
        one, waiting = waiting[at], np.delete(waiting, at)
        ends.append(int(lowest[one] + sizes[one]))
        lowest = np.where((lower < upper[one]) & (lower[one] < upper), np.maximum(lowest, ends[-1]), lowest)
    return max(ends)


def is_sound(buffers: Any, plan: ds.Plan) -> bool:
    rows = [(*buffer, offset) for buffer, offset in zip(buffers, plan.offsets.tolist(), strict=True) if buffer[2]]
    return all(
        one[1] <= other[0] or other[1] <= one[0] or one[3] + one[2] <= other[3] or other[3] + other[2] <= one[3]
        for one, other in itertools.combinations(rows, 2)
    ) and all(offset >= 0 for *_, offset in rows)


@given(st.lists(buffers_of, max_size=6))
def test_a_small_plan_is_as_low_as_the_lowest_of_all_orders(buffers: Any) -> None:
    plan = ds.plan(buffers, time_limit=60)
    lowest = min(height_by_order(order) for order in itertools.permutations(buffers))
    assert is_sound(buffers, plan)
    assert (plan.height, plan.lower_bound, plan.is_optimal) == (lowest, lowest, True)


@given(st.lists(buffers_of, max_size=60))
def test_a_plan_is_sound_and_not_above_the_greedy_one_by_size_whatever_the_time(buffers: Any) -> None:
    for seconds in (0, 0.01):
        plan = ds.plan(buffers, time_limit=seconds)
        assert is_sound(buffers, plan)
        assert plan.height == max(
            (o + b[2] for o, b in zip(plan.offsets.tolist(), buffers, strict=True) if b[2]), default=0
        )
        assert plan.lower_bound <= plan.height <= height_by_order(sorted(buffers, key=lambda buffer: -buffer[2]))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(1, 20)), max_size=150))
def test_the_greedy_plan_by_size_puts_each_buffer_where_it_first_fits(rows: Any) -> None:
    # Lives of all lengths. The first buffer is as large as all others, and alone: no plan is lower.
    alone = (2_000, 2_001, 1 + sum(size for _, _, size in rows))
    others = sorted([(lower, lower + 2**width, size) for lower, width, size in rows], key=lambda buffer: -buffer[2])
    assert ds.plan([alone, *others]).offsets.tolist() == offsets_by_order([alone, *others])


def test_in_no_time_two_plans_are_made_and_the_lower_one_is_taken() -> None:
    for seed in range(5):
        random = np.random.default_rng(seed)
        lower, width, size = (random.integers(1, most, 300) for most in (200, 100, 1_000))
        buffers = np.stack([lower, lower + width, size], axis=1)
        by_size = height_by_order(sorted(buffers.tolist(), key=lambda buffer: -buffer[2]))
        plan = ds.plan(buffers, time_limit=0)
        assert plan.height == min(by_size, height_lowest_first(buffers))


def test_lives_far_apart_and_negative_times_are_planned() -> None:
    plan = ds.plan(np.array([(-(2**62), 2**62, 8), (2**62, 2**62 + 1, 8), (0, 1, 2**40)]))
    assert plan.height == 2**40 + 8
    assert plan.is_optimal
    assert plan.ratio == 1.0


def test_an_iterator_of_buffers_is_read() -> None:
    rows = [(0, 2, 64), (1, 3, 32), (2, 4, 64)]
    found = ds.plan(row for row in rows)
    assert found.offsets.tolist() == ds.plan(rows).offsets.tolist()
    assert ds.plan(iter(())).height == 0


def test_no_buffers_need_no_bytes() -> None:
    for nothing in ([], np.zeros((0, 3), int), [(0, 1, 0)]):
        plan = ds.plan(nothing)
        assert (plan.height, plan.lower_bound, plan.ratio, plan.is_optimal) == (0, 0, 1.0, True)
    assert plan.offsets.tolist() == [0]


def test_parts_that_share_no_time_are_searched_by_themselves() -> None:
    part = [(0, 2, 30), (1, 4, 20), (3, 6, 30), (5, 8, 20), (0, 8, 7), (2, 5, 11), (6, 8, 33)]
    alone = ds.plan(part, time_limit=60)
    many = [(lower + 10 * number, upper + 10 * number, size) for number in range(40) for lower, upper, size in part]
    plan = ds.plan(many, time_limit=60)
    assert is_sound(many, plan)
    assert plan.height == alone.height
    assert plan.is_optimal


def test_thousands_of_buffers_are_planned_without_a_search() -> None:
    random = np.random.default_rng(0)
    lower = random.integers(0, 6_000, 3_000)
    buffers = np.stack([lower, lower + random.integers(1, 100, 3_000), random.integers(1, 1_000, 3_000)], axis=1)
    plan = ds.plan(buffers, time_limit=0.01)
    assert plan.height < 1.25 * plan.lower_bound
    ends = plan.offsets + buffers[:, 2]
    for moment in range(0, 6_000, 37):
        alive = np.flatnonzero((buffers[:, 0] <= moment) & (moment < buffers[:, 1]))
        order = alive[np.argsort(plan.offsets[alive])]
        assert (ends[order[:-1]] <= plan.offsets[order[1:]]).all()


def test_the_offsets_cannot_be_changed() -> None:
    plan = ds.plan([(0, 1, 8)])
    assert plan.offsets.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        plan.offsets[0] = 1


HARD = [(i % 37, i % 37 + 5 + i * i % 23, 100 + 37 * i % 991) for i in range(120)]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads get no signals")
def test_other_threads_run_while_a_plan_is_made_and_it_can_be_interrupted() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    def interrupt_the_plan() -> None:
        # Were no other thread to run while one plans, this one would not, and nothing would end the
        # plan.
        begun.wait()
        signal.pthread_kill(planning, signal.SIGUSR1)

    begun, planning = threading.Event(), threading.get_ident()
    other = threading.Thread(target=interrupt_the_plan)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        other.start()
        with pytest.raises(Interrupted):
            begun.set()
            while True:
                ds.plan(HARD, time_limit=600)
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("buffers", "error", "message"),
    [
        ([(0, 1)], ValueError, r"expected an array of shape \(n, 3\) with lower, upper and size, found \(1, 2\)"),
        ([(0, 1, 8), (0, 1)], ValueError, "rows of different lengths"),
        ([[], []], ValueError, r"expected an array of shape \(n, 3\) with lower, upper and size, found \(2, 0\)"),
        (np.zeros((0, 2), int), ValueError, r"found \(0, 2\)"),
        (np.array(5), ValueError, r"found \(\)"),
        (None, TypeError, "plan: buffers are rows of lower, upper and size, not None"),
        (5, TypeError, "rows of lower, upper and size, not 5"),
        ("abc", TypeError, "rows of lower, upper and size, not 'abc'"),
        ({"a": (0, 1, 2)}, TypeError, r"rows of lower, upper and size, not {'a': \(0, 1, 2\)}"),
        ({(0, 1, 2)}, TypeError, r"rows of lower, upper and size, not {\(0, 1, 2\)}"),
        (iter([(0, 1)]), ValueError, r"found \(1, 2\)"),
        (iter([(0, 1, 2**70)]), ValueError, "does not fit into 64 bits"),
        (
            [(0, 1, 8), (3, 3, 8)],
            ValueError,
            "buffer 1 .lower 3, upper 3, size 8.: its life ends before or when it begins",
        ),
        ([(0, 1, -8)], ValueError, "buffer 0 .lower 0, upper 1, size -8.: its size is negative"),
        ([(0.0, 1.0, 8.5)], TypeError, "lower, upper and size are integers, not float64"),
        ([("a", "b", "c")], TypeError, "are integers, not <U1"),
        ([(0, 1, 2**63)], ValueError, "does not fit into 64 bits"),
        ([(0, 1, 2**70)], ValueError, "does not fit into 64 bits"),
        ([(0, 1, 2**61), (0, 1, 2**61)], ValueError, "more than can be planned"),
    ],
)
def test_what_are_no_buffers_is_refused(buffers: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ds.plan(buffers)


@pytest.mark.parametrize(
    ("limit", "error"), [(-1, ValueError), (math.nan, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_what_is_no_time_limit_is_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="plan: time_limit is a number of seconds"):
        ds.plan([(0, 1, 8)], time_limit=limit)
