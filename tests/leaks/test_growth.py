"""Steady growth is found within 50 passes; warm-up, caches that fill, saw-teeth and noise never."""

import random
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disposescope.leaks import LeakDetector
from disposescope.leaks.running.inventory import _until_freed
from disposescope.leaks.verdicts import growth
from disposescope.leaks.verdicts.growth import (
    doubt_of,
    rises,
    trend_of,
    trend_of_births,
    trend_over_births,
)

seeds = st.integers(0, 2**32)


def course(counts: list[int], nbytes: int = 1024) -> list[tuple[int, int, int]]:
    return [(index, count, count * nbytes) for index, count in enumerate(counts, 1)]


@settings(deadline=None, max_examples=150)
@given(
    start=st.integers(0, 10_000),
    warm_up=st.integers(0, 10),
    per_pass=st.integers(1, 20),
    passes=st.integers(40, 50),
    teeth=st.integers(1, 2),
)
def test_one_kilobyte_per_pass_is_found_within_50_passes(
    start: int, warm_up: int, per_pass: int, passes: int, teeth: int
) -> None:
    counts = [start + min(index, warm_up) * 7 + index * per_pass + index % teeth for index in range(passes)]
    trend = trend_of(course(counts))
    assert trend is not None
    assert trend.count_per_pass == pytest.approx(per_pass, rel=0.25)
    assert trend.nbytes_per_pass == pytest.approx(per_pass * 1024, rel=0.25)
    assert trend.fit > 0.8


def test_the_distances_of_a_table_are_compared_with_one_median(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=growth.median)
    monkeypatch.setattr(growth, "median", counted)
    with LeakDetector() as detector:
        table = [np.ones(10) for _ in range(500)]
        report = detector.report(of_program=True)
    assert counted.call_count < len(table) / 10
    assert not report.leaks


def test_a_line_rises_where_each_later_floor_is_higher() -> None:
    popped = [level + tooth for level in range(0, 40, 10) for tooth in (*range(10), *range(9, -1, -1), *range(10))]
    assert rises(course(popped))
    assert rises(course(list(range(100))))
    assert rises(course([0] * 80 + list(range(1, 21))))
    assert rises(course([1, 2] * 35 + list(range(1, 31)))), "what was released at once stays from some time on"


@pytest.mark.parametrize("passes", [24, 30])
def test_what_an_evaluation_keeps_after_each_epoch_of_five_passes_rises(passes: int) -> None:
    assert rises(
        [(number, 4 * (number // 5 - (number % 5 == 0)), 0) for number in range(6, passes + 1)]
        + [(passes + 1, 4 * (passes // 5), 0)]
    )


@pytest.mark.parametrize(("waves", "tasks"), [(4, 50), (10, 20), (3, 50), (10, 5)])
def test_what_tasks_that_begin_together_keep_before_the_first_of_them_ends_rises(waves: int, tasks: int) -> None:
    counts = [tasks * (index // tasks + 1) for index in range(waves * tasks)]
    assert rises([(number, count, 0) for number, count in enumerate([*counts, counts[-1]], 1)])


@pytest.mark.parametrize(
    "counts",
    [
        [min(index, 30) for index in range(100)],  # a cache that fills
        [min(index, 70) for index in range(100)],  # one that is full late
        [round(100 * (1 - 0.99**index)) for index in range(150)],  # one that is read at random
        [index % 25 for index in range(100)],  # what each epoch begins anew
        [0] * 50 + [index % 25 for index in range(50)],  # the same, after a long preparation
        [*range(50), *range(50)],  # the same, of two epochs
        [0, 1] * 46 + list(range(10, 50, 5)),  # what was made at the very end
        [50] * 100,  # what was there before
        list(range(10)),  # too few to say
        [index // 10 for index in range(100)],  # too little to say
    ],
)
def test_what_is_full_begins_anew_or_is_little_does_not_rise(counts: list[int]) -> None:
    assert not rises(course(counts))


@settings(deadline=None, max_examples=50)
@given(turns=st.integers(40, 400), own=st.integers(1, 4), each=st.integers(1, 3))
def test_what_each_turn_compares_with_all_before_grows_over_births(turns: int, own: int, each: int) -> None:
    births, points = 0, []
    for turn in range(1, turns + 1):
        births += own + each * turn
        points.append((births, turn, turn * 1024))
    assert trend_over_births(points) is not None


@pytest.mark.parametrize("places", [60, 120, 250])
@pytest.mark.parametrize("times", [1.5, 2.0, 2.5, 3.0, 4.0])
def test_a_cache_that_is_read_at_random_does_not_grow_by_a_root(places: int, times: float) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        known: set[int] = set()
        points = []
        for read in range(1, round(places * times)):
            known.add(chance.randrange(places))
            points.append((read, len(known), len(known) * 1024))
        assert trend_over_births(points) is None or trend_of(points) is not None, seed


def test_a_steady_growth_is_reported_with_its_figures() -> None:
    trend = trend_of(course(list(range(100, 150))))
    assert trend is not None
    assert (trend.passes, trend.count_per_pass, trend.nbytes_per_pass, trend.fit) == (50, 1.0, 1024.0, 1.0)
    assert trend.first_pass == 13
    assert trend.series[-1] == (50, 149, 149 * 1024)


@settings(deadline=None, max_examples=150)
@given(seed=seeds, passes=st.integers(60, 2_000))
def test_a_growth_of_bytes_of_different_sizes_is_found(seed: int, passes: int) -> None:
    chance = random.Random(seed)
    total, series = 0, []
    for index in range(passes):
        total += chance.randint(800, 1200)
        series.append((index, 1, total))
    trend = trend_of(series)
    assert trend is not None
    assert len(trend.series) <= 200


@settings(deadline=None, max_examples=150)
@given(seed=seeds, passes=st.integers(500, 2_000), kept=st.integers(100, 400))
def test_a_growth_of_which_a_sample_is_kept_is_at_least_in_doubt(seed: int, passes: int, kept: int) -> None:
    chance = random.Random(seed)
    weight = passes / kept
    live, series, sampled = 0.0, [], 0
    for index in range(passes):
        if chance.random() * weight < 1.0:
            live += weight
            sampled += 1
        series.append((index, round(live), round(live * 8000)))
    assert trend_of(series, doubt=doubt_of(sampled)) is not None
    # Of a table that is full there is no doubt.
    full = series[-1][1]
    assert trend_of([*series, *((passes + index, full, full) for index in range(passes))], doubt=0.69) is None


@settings(deadline=None, max_examples=400)
@given(level=st.integers(0, 1000), warm_up=st.integers(0, 12), passes=st.integers(0, 300), gain=st.integers(1, 500))
def test_warm_up_is_not_reported(level: int, warm_up: int, passes: int, gain: int) -> None:
    assert trend_of(course([level + gain * min(index, warm_up) for index in range(max(passes, warm_up * 4))])) is None


@settings(deadline=None, max_examples=400)
@given(capacity=st.integers(1, 200), passes=st.integers(12, 400), per_pass=st.integers(1, 5))
def test_a_cache_that_fills_and_stays_is_not_reported(capacity: int, passes: int, per_pass: int) -> None:
    passes = max(passes, 12, int(capacity / per_pass * 1.5) + 1)
    assert trend_of(course([min(index * per_pass, capacity) for index in range(passes)])) is None


@settings(deadline=None, max_examples=400, derandomize=True)  # by chance a course can be any: the same ones each time
@given(seed=seeds, capacity=st.integers(2, 60), passes=st.integers(3, 8))
@example(seed=1048576, capacity=27, passes=3)
def test_a_cache_that_fills_with_what_is_asked_by_chance_is_not_reported(seed: int, capacity: int, passes: int) -> None:
    chance = random.Random(seed)
    cached: set[int] = set()
    counts = []
    for _ in range(max(12, capacity * (2 + passes))):
        cached.add(chance.randrange(capacity))
        counts.append(len(cached))
    assert trend_of(course(counts)) is None


@settings(deadline=None, max_examples=400)
@given(period=st.integers(2, 60), teeth=st.integers(4, 40), level=st.integers(0, 100), phase=st.integers(0, 60))
def test_saw_teeth_are_not_reported(period: int, teeth: int, level: int, phase: int) -> None:
    counts = [level + (index + phase) % period for index in range(max(12, period * teeth))]
    assert trend_of(course(counts)) is None


@settings(deadline=None, max_examples=400, derandomize=True)  # as above
@given(seed=seeds, passes=st.integers(12, 500), size=st.integers(1, 10_000))
def test_noise_is_not_reported(seed: int, passes: int, size: int) -> None:
    chance = random.Random(seed)
    assert trend_of(course([chance.randint(0, size) for _ in range(passes)])) is None


def test_saw_teeth_on_a_growth_do_not_hide_it() -> None:
    assert trend_of(course([index * 2 + (index % 10) * 3 for index in range(200)])) is not None


def test_what_falls_stays_or_is_too_short_does_not_grow() -> None:
    assert trend_of(course([100 - index for index in range(50)])) is None
    assert trend_of(course([7] * 50)) is None
    assert trend_of(course(list(range(11)))) is None
    assert trend_of([]) is None


def test_births_that_all_stay_along_a_program_grow_also_without_passes() -> None:
    numbers = list(range(5, 305, 10))
    trend = trend_of_births(numbers, [1024] * 30, births=30, last=305, course=list)
    assert trend is not None
    assert (trend.passes, trend.count_per_pass, trend.nbytes_per_pass) == (30, 1.0, 1024.0)
    assert trend_of_births(numbers, [1024] * 30, births=100, last=305, course=list) is None, "most of them died"
    assert trend_of_births(numbers, [1024] * 30, births=30, last=2_000, course=list) is None, "it ended long ago"
    assert trend_of_births(list(range(30)), [8] * 30, births=30, last=31, course=list) is None, "a few made in a row"
    assert trend_of_births(numbers[:10], [8] * 10, births=10, last=100, course=list) is None, "too few"
    early = [*range(0, 100, 5), 290]
    assert trend_of_births(early, [8] * 21, births=21, last=300, course=list) is None, "one late birth makes no loop"


def test_what_the_first_passes_compile_does_not_hide_a_growth() -> None:
    steps = [500, 501, 502, 503, *range(1077, 1077 + 8 * 150, 8)]
    trend = trend_of_births(steps, [1024] * len(steps), births=len(steps), last=2280, course=list)
    assert trend is not None
    phases = [*range(10, 20), *range(600, 1000, 10)]
    assert trend_of_births(phases, [1024] * 50, births=50, last=1000, course=list) is None, "a setup, and a late phase"
    late = [3, 4, 5, 6, *range(1077, 1277, 2)]
    assert trend_of_births(late, [1024] * len(late), births=len(late), last=1280, course=list) is None, "a late phase"
    # Twenty times eight, such as of tasks that are gathered. Other things are made before each.
    bursts = [100 * burst + 50 + number for burst in range(20) for number in range(8)]
    assert trend_of_births(bursts, [1024] * 160, births=160, last=2000, course=list) is not None
    filling = [100 * burst + 50 + number for burst in range(20) for number in range(max(1, 12 - burst))]
    assert trend_of_births(filling, [8] * len(filling), births=len(filling), last=2000, course=list) is None, "a cache"
    assert trend_of_births(bursts[:120], [1024] * 120, births=120, last=1500, course=list) is None, "15 bursts"


def test_a_short_pause_in_what_a_program_makes_nearly_alone_does_not_hide_its_growth() -> None:
    numbers = [*range(1, 1001), *range(1006, 2006)]
    assert trend_of_births(numbers, [1024] * 2000, births=2000, last=2005, course=list) is not None
    late = [*range(1, 1001), *range(1200, 2200)]
    assert trend_of_births(late, [1024] * 2000, births=2000, last=2199, course=list) is None, "made in two phases"


def test_a_list_that_is_all_that_a_program_makes_grows_too() -> None:
    alone, sizes = list(range(1, 501)), [1024] * 500
    trend = trend_of_births(alone, sizes, births=500, last=500, course=list)
    assert trend is not None
    assert (trend.passes, trend.over, trend.count_per_pass, trend.nbytes_per_pass) == (500, "births", 1.0, 1024.0)
    assert trend_of_births(alone, sizes, births=500, last=500, course=list, in_a_row=True) is None, "a comprehension"
    assert trend_of_births(alone, sizes, births=500, last=700, course=list) is None, "a table that is used afterwards"
    with_others = list(range(1, 1501, 3))
    assert trend_of_births(with_others, sizes, births=1500, last=1500, course=list) is not None, (
        "two temporaries a turn"
    )
    assert trend_of_births(with_others, sizes, births=1600, last=1500, course=list) is None, "most of them died"
    steadily = [(number, number // 3, number * 341) for number in range(0, 1501, 10)]
    assert trend_of_births(with_others, sizes, births=9000, last=1500, course=lambda: steadily) is not None
    bounded = [(number, min(100, number), min(100, number) * 1024) for number in range(0, 1501, 10)]
    assert trend_of_births(with_others, sizes, births=9000, last=1500, course=lambda: bounded) is None, "a buffer"


@pytest.mark.parametrize(
    ("counts", "until"),
    [
        ([*range(1, 100), 0, 0], 99),
        ([*range(1, 11), 0], 10),
        ([*range(1, 100), 0, 0, 0], 102),
        ([*range(1, 100), 60, 0], 100),
        ([0] * 40, 40),
        ([], 0),
    ],
    ids=["two tensors after it", "one", "three", "in parts", "never any", "no point"],
)
def test_the_course_of_a_line_ends_when_it_was_freed(counts: list[int], until: int) -> None:
    assert len(_until_freed(course(counts), over_births=True)) == until


@pytest.mark.parametrize("stride", [1, 4], ids=["passes", "some births"])
def test_one_point_of_several_births_is_left_out_at_most(stride: int) -> None:
    for counts, until in (([*range(1, 100), 0], 99), ([*range(1, 100), 0, 0], 101)):
        points = [(stride * number, count, nbytes) for number, count, nbytes in course(counts)]
        assert len(_until_freed(points, over_births=stride > 1)) == until
