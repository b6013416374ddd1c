"""Find growth: over the passes of a loop, or over births."""

from __future__ import annotations

import dis
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, combinations, count, pairwise
from statistics import median
from types import CodeType
from typing import Final, final

from ...scopes.base.sites import COMPREHENSIONS, is_in_comprehension, line_of
from ..births.lines import Beginning, Births
from ..births.log import GATHERING, JOINING, LOG, SiteRow
from ..report.leaks import WARM_UP, Trend, replaced
from ..report.timeline import UNASKED

__all__ = [
    "BIRTHS_AT_LEAST",
    "EPOCHS",
    "FEW_RESULTS",
    "MODELS",
    "MADE_FOR_ONE",
    "NEVER_RELEASED",
    "PASSES_AT_LEAST",
    "STOPPED",
    "Evidence",
    "Point",
    "are_few_and_large",
    "began_lately",
    "course_over_births",
    "doubt_of",
    "has_levels",
    "is_of_phase",
    "joins",
    "most_held",
    "phase_after_passes",
    "rises",
    "trend_of",
    "trend_of_births",
    "trend_over_births",
    "was_gathered",
]

# Decide whether a line grows, from its live resources over the passes of a loop, or over births.
#
# Growth has to be distinguished from other changes. A warm-up is left out. Of the rest only the
# lower envelope counts, which excludes saw-teeth. The growth has to go on to the end at the same
# speed, which excludes a cache that fills, and it has to be steadier than chance, which excludes
# noise. In case of doubt no growth is reported.
#
# The slope is the median of all slopes (Theil 1950, Sen 1968), which a few outliers do not move;
# the steadiness is the rank correlation of Mann (1945) and Kendall.


Point = tuple[int, int, int]
"""Pass, live count, live bytes."""

# Growth over passes. "Speed" is growth per pass.

PASSES_AT_LEAST: Final = 16
"""Of fewer passes no growth is reported."""
_POINTS: Final = 96
"""So many points of a series are looked at most: slopes are computed for each pair of them."""
_POINTS_SHOWN: Final = 200
"""So many points of a series are kept for the report."""
_BLOCKS: Final = 12
"""The lower envelope is the minima of so many blocks of passes."""
_STEADY: Final = 0.8
"""The rank correlation of a series that grows steadily is at least this."""
_STILL_AS_FAST: Final = 0.7
"""The speed of the last third is at least this part of that of the first third."""
_JUST_AS_FAST: Final = 0.75
"""The same where the speed has fallen since the warm-up: see `_FASTER_BEFORE`."""
_GOES_ON: Final = 0.58
"""In the last quarter at least this part of an even quarter of a rise is added."""
_FASTER_BEFORE: Final = 2.0
"""Where the warm-up was more than so many times as fast, a cache may be filling up."""
_MUCH_FASTER_BEFORE: Final = 4.0
"""Where it was more than so many times as fast, new levels must also come at even distances."""
_EVEN: Final = 2.5
"""Distances are even if the largest is at most so many times the mean."""
_VALUES_AT_LEAST: Final = 9
"""A series that grows has at least so many different values, a third of them in its last third."""
_DEVIATIONS: Final = 2.0
"""So many standard deviations a sample may be off by chance."""

# Growth over births, in programs without passes.

BIRTHS_AT_LEAST: Final = 16
"""Of fewer living results of a line no growth is reported."""
_ALONE_AT_LEAST: Final = 32
"""From so many living results on, other lines need not make anything in between."""
MADE_FOR_ONE: Final = 3
"""So many births may stand for one result: an expression makes one or two others on the way."""
_PARTS_IN_ONE: Final = 8
"""A model has all earlier ones in it if there are at least so many modules for each model."""
_OTHERS: Final = 3
"""Below `_ALONE_AT_LEAST`, there are at least so many births of the program for each result."""
_UNTIL_THE_END: Final = 0.9
"""The last result is born after this share of the births of the program."""
_FROM_THE_START: Final = 0.5
"""From the first result to the last is at least this share of the births of the program."""
_GAP: Final = 4.0
"""The largest distance between results is at most so many times the median, or the mean."""
_DISTANCES_BETWEEN_RUNS: Final = 2
"""A comprehension with so many larger distances runs more than once."""
_IN_LAST_HALF: Final = 0.4
"""The last half of some bursts has at least this share of the results."""
_SMALL_PART: Final = 1 / 32
"""A distance of at most this share of all is no gap, however many times the mean it is."""
_FIRST_PASSES: Final = 32
"""One part in so many of the results, the first ones, may be those of the first passes."""

_GATHERED_AT_MOST: Final = 4
"""A line that gathers results in the end does so at most so many times, for as many lists."""
_TABLE_TIMES: Final = 8
"""A table has at most so many times the bytes of the results of one line: others have its rest."""
_NAMING: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME")
"""Instructions that load what a line calls."""

# Whether what stays of a line rises: see `rises`.

_NEARLY_NONE: Final = 0.05
"""Until so small a share of its last level was passed, a line kept nothing."""
_LIFE: Final = 0.1
"""From the first result that stays to the last is at least this share of the run."""
_QUARTERS: Final = (0.25, 0.5, 0.75)
_PARTS_OF_A_ROOT: Final = ((0.0625, 0.06), (0.125, 0.05), (0.25, 0.05), (0.5, 0.04), (0.75, 0.04))
"""At each of these parts of its life a line that rises with the root of all births has the root of
the part, as a share of its last level; the second number is the tolerance.
"""
_FINE: Final = 1_000_000
"""By how much births are multiplied before their root is rounded."""
_UNEVEN: Final = 0.3
"""At a quarter of its life a line has a quarter of its last level; this is the tolerance."""

EPOCHS: Final = 6
"""Beside steps of an optimizer, so many results of a line may be one for each epoch."""
MODELS: Final = 4
"""So many models of a line, with other work in between, may be one for each run of a training."""
_MORE_THAN_BEFORE: Final = 4
"""A line is of a phase after the passes if it has so many times as many as it ever had before."""
FEW_RESULTS: Final = 3
"""So many results of a line may become `EPOCHS`, where the program goes on."""
_FEW_WORTH_A_LOOK_NBYTES: Final = 4_000_000
"""Fewer bytes of so few results are not looked at."""
NEVER_RELEASED: Final = 0.9
"""A line has released nothing if at least this share of what it made is alive."""
STOPPED: Final = 0.5
"""A line whose last result was born before this share of the run has stopped."""


def trend_of(series: Sequence[Point], *, doubt: float = 0.0) -> Trend | None:
    """Return the steady growth of a line's live resources, or None if there is none.

    Parameters
    ----------
    series : sequence of (int, int, int)
        Pass, live count and live bytes, in order.
    doubt : float, default 0.0
        The share of its speed by which the growth may slow down in addition and still be steady.
    """
    if len(series) < PASSES_AT_LEAST:
        return None
    warm_up = len(series) // WARM_UP
    points = _thinned(series[warm_up:], _POINTS)
    before = _thinned(series[: warm_up + 1], _POINTS)
    # By the live count, or by the live bytes.
    if not any(
        _grows([point[field] for point in before], [point[field] for point in points], before, points, doubt)
        for field in (1, 2)
    ):
        return None
    passes = [number for number, _, _ in points]
    count_per_pass, _ = _line(passes, [count for _, count, _ in points])
    nbytes_per_pass, fit = _line(passes, [nbytes for _, _, nbytes in points])
    if nbytes_per_pass <= 0.0:
        _, fit = _line(passes, [count for _, count, _ in points])
    return Trend(
        passes=series[-1][0] - series[0][0] + 1,
        count_per_pass=max(0.0, count_per_pass),
        nbytes_per_pass=max(0.0, nbytes_per_pass),
        first_pass=points[0][0],
        fit=fit,
        series=tuple(_thinned(series, _POINTS_SHOWN)),
    )


def trend_of_births(
    numbers: Sequence[int],
    sizes: Sequence[int],
    births: int,
    last: int,
    course: Callable[[], Sequence[Point]],
    *,
    in_a_row: bool = False,
    have_parts: bool = False,
    weights: Sequence[float] = (),
) -> Trend | None:
    """Return the growth of a line in a program without passes, or None if it does not grow.

    A line grows if its results stay, evenly from the start of the program to its end, where time is
    the number of births of the program. A third of what the line makes has to stay, because an
    expression makes one or two others on the way. Where less stays, its live resources must have
    grown steadily (`trend_over_births`).

    In the trend each birth of the line is a pass.

    Parameters
    ----------
    numbers : sequence of int
        The numbers of the births of the living results, in order.
    sizes : sequence of int
        The bytes of each living result.
    births : int
        How many births the line had; an estimate where births are sampled.
    last : int
        The number of the last birth of the program.
    course : callable
        Returns the points of the line over the births of the program, in order.
    in_a_row : bool, default False
        Whether a comprehension makes the results, as a table where nothing else is made between
        them.
    have_parts : bool, default False
        Whether the results are models. The parts of a model are born with it, so the number of
        births between two models says little.
    weights : sequence of float, default ()
        How many births each living result stands for; empty if each stands only for itself.
    """
    count = len(numbers)
    if count < BIRTHS_AT_LEAST:
        return None
    spread = numbers[-1] - numbers[0]
    # A table is filled before the loop begins. What a loop keeps is made until the end.
    if numbers[-1] < _UNTIL_THE_END * last or spread < _FROM_THE_START * last:
        return None
    gaps = [after - before for before, after in pairwise(numbers)]
    # The results of a comprehension that runs once are at even distances.
    if in_a_row and (have_parts or max(gaps) <= _GAP * median(gaps)):
        return None
    if not have_parts and count < _ALONE_AT_LEAST and spread < _OTHERS * count:
        return None
    # The first passes may compile, which makes many other births: do not count their distances.
    warm_up = count // _FIRST_PASSES
    spread = numbers[-1] - numbers[warm_up]
    if spread < _FROM_THE_START * (1 - 1 / _FIRST_PASSES) * last:
        return None
    if not _are_even(numbers[warm_up:]) and not _come_in_even_bursts(numbers[warm_up:]):
        return None
    weights = weights or [1.0] * count
    if sum(weights) * MADE_FOR_ONE < births and trend_over_births(course()) is None:
        return None
    made = total = 0.0
    series: list[Point] = []
    for index, (nbytes, weight) in enumerate(zip(sizes, weights, strict=True), 1):
        made += weight
        total += nbytes * weight
        series.append((index, round(made), round(total)))
    return Trend(
        passes=births,
        count_per_pass=made / births,
        nbytes_per_pass=total / births,
        first_pass=1,
        fit=1.0,
        series=tuple(_thinned(series, _POINTS_SHOWN)),
        over="births",
    )


def _are_even(numbers: Sequence[int]) -> bool:
    """Return whether births follow one another without a large gap: at least `BIRTHS_AT_LEAST`."""
    if len(numbers) < BIRTHS_AT_LEAST:
        return False
    # With many results a gap of many times the mean may still be a small part of the run.
    at_most = (numbers[-1] - numbers[0]) * max(_GAP / (len(numbers) - 1), _SMALL_PART)
    return max(after - before for before, after in pairwise(numbers)) <= at_most


def _come_in_even_bursts(numbers: Sequence[int]) -> bool:
    """Return whether births come in bursts, such as of requests that a service gets together.

    The bursts follow one another evenly, and the last half of them has nearly half of the births. A
    cache that fills has fewer and fewer.
    """
    mean = (numbers[-1] - numbers[0]) / (len(numbers) - 1)
    firsts = [numbers[0], *(after for before, after in pairwise(numbers) if after - before > mean)]
    in_last_half = len(numbers) - bisect_left(numbers, firsts[len(firsts) // 2])
    return _are_even(firsts) and in_last_half >= _IN_LAST_HALF * len(numbers)


def are_few_and_large(count: int, nbytes: float) -> bool:
    """Return whether the results of a line may become `EPOCHS`, and are large enough to look at."""
    return count >= FEW_RESULTS and nbytes >= _FEW_WORTH_A_LOOK_NBYTES


def joins(row: SiteRow) -> bool:
    """Return whether a site joins arrays: its results may have the contents of earlier ones."""
    return _calls(row, JOINING)


def becomes_larger_alone(trend: Trend, row: SiteRow) -> bool:
    """Return whether each result of a line is larger than the one that it replaces: no growth.

    Such as a batch of longer sequences, where a data set is sorted. What is joined to the one
    before does grow, and so does an array that is resized.

    Parameters
    ----------
    trend : Trend
        The growth of the line over passes.
    row : SiteRow
        The site of the log.
    """
    live = replaced(trend.series)
    return live > 0 and row.made >= BIRTHS_AT_LEAST * live and not joins(row)


def _are_of_last_pass(births: Births, name: str, trend: Trend) -> bool:
    """Return whether nothing of a line is older than the last pass, as each pass released its own.

    The passes made more and more, such as the longer and longer episodes of an agent.
    """
    return not replaced(trend.series) and births.oldest > LOG.last_pass(name)[0]


def was_gathered(nbytes: float, largest: float, latest: int, rows: Iterable[SiteRow]) -> bool:
    """Return whether the program put all results of a line together in the end.

    An evaluation does so with its outputs: the list of them was meant to grow. Then a call such as
    ``np.concatenate`` made about as many bytes, after the last result.

    Parameters
    ----------
    nbytes : int
        The bytes of the living results of the line.
    largest : int
        The bytes of the largest one: the last result of a loop may be alive but not gathered.
    latest : int
        The number of the last birth of the line.
    rows : iterable of SiteRow
        The rows of all sites in the log.
    """
    for row in rows:
        # A line that gathered several lists had more bytes than one of them. One call may make many
        # arrays, such as those of a table: then all of them were made after the results.
        is_one_call = row.first_birth > latest and row.peak_nbytes <= _TABLE_TIMES * nbytes
        if row.peak_nbytes < nbytes - largest or not (row.made <= _GATHERED_AT_MOST or is_one_call):
            continue
        if row.made == 1 and row.peak_nbytes > nbytes + largest:
            continue
        if row.last_birth > latest and _calls(row, GATHERING):
            return True
    return False


def _calls(row: SiteRow, functions: frozenset[str]) -> bool:
    """Return whether a site calls one of some functions."""
    # The log may not know the call of a function written in C: ask the code of the line.
    return row.op in functions or (row.op is None and bool(row.places) and _names(functions, *row.places[0]))


@lru_cache(maxsize=256)
def _names(functions: frozenset[str], code: CodeType, offset: int) -> bool:
    """Return whether a line of code names one of some functions."""
    line = line_of(code, offset)
    return any(
        each.opname in _NAMING and each.argval in functions and line_of(code, each.offset) == line
        for each in dis.get_instructions(code)
    )


def _trend_of_replaced(course: Sequence[Point], live: int, made: int, latest: int, last: int) -> Trend | None:
    """Return the growth of one array, or one for each layer, in a program without passes; or None.

    A line joins ever more to it, so that each result replaces the one before, from early in the run
    to its end; or a line made one, which was resized. The bytes grow steadily.

    Parameters
    ----------
    course : sequence of (int, int, int)
        The points of the line over the births of the program, in order.
    live : int
        How many are alive: see `replaced`.
    made : int
        How many births the line had.
    latest : int
        The number of the birth of the last living result.
    last : int
        The number of the last birth of the program.
    """
    if made == 1:
        if not has_levels(course):
            return None
    elif made < BIRTHS_AT_LEAST * live or latest < _UNTIL_THE_END * last:
        return None
    trend = trend_of(course)
    if trend is None or course[0][0] > _FROM_THE_START * last:
        return None
    _, count, nbytes = course[-1]
    return replace(trend, over="births", passes=made, count_per_pass=count / made, nbytes_per_pass=nbytes / made)


def has_levels(course: Sequence[Point]) -> bool:
    """Return whether the bytes of a line changed often enough to be growth."""
    return len({nbytes for *_, nbytes in course}) >= _VALUES_AT_LEAST


def rises(course: Sequence[Point], at_least: int = BIRTHS_AT_LEAST) -> bool:
    """Return whether the results that stay of a line rise evenly from the first one to the last.

    The level at a point is the smallest live count from there on. So a full cache does not rise,
    nor a list that each epoch begins anew. Before the first result that stays the line may have
    made and released many, as where an error keeps them from some time on.

    Parameters
    ----------
    course : sequence of (int, int, int)
        The points of the line over passes, or over the births of the program, in order.
    at_least : int, default 16
        The last level must be at least this.
    """
    if len(course) < PASSES_AT_LEAST:
        return False
    floors = _floors_of(course)
    if floors[-1] < at_least:
        return False
    # The rise begins where the live count was low for the last time: an expression makes one or two
    # on the way to its result.
    low = max(2, _NEARLY_NONE * floors[-1])
    last_low = max((index for index, (_, count, _) in enumerate(course) if count <= low), default=-1)
    if all(count <= low for _, count, _ in course[:last_low]) and last_low >= 0:
        first = course[last_low][0]
    else:
        # At the pass or birth before there was nothing: the log begins with the first result.
        first = next(number for number, count, _ in course if count) - 1
    life = course[-1][0] - first
    if life < _LIFE * (course[-1][0] - course[0][0]):
        return False
    places = [bisect_left(course, (first + part * life,)) for part in _QUARTERS]
    at_quarters = [floors[place] for place in places]
    # A cache fills ever more slowly, and is full in the end. The end of a quarter is known to one
    # step of the level: tasks that begin together make their results before the first of them ends.
    step = next(
        (after - before for after, before in pairwise(reversed(floors[: places[-1] + 1])) if after != before), 0
    )
    if floors[-1] - at_quarters[-1] + max(1, step) < _GOES_ON * floors[-1] / 4:
        return False
    return all(abs(floor / floors[-1] - part) <= _UNEVEN for floor, part in zip(at_quarters, _QUARTERS, strict=True))


def _floors_of(course: Sequence[Point]) -> list[int]:
    """Return for each point the smallest live count from there on."""
    return list(accumulate((count for _, count, _ in reversed(course)), min))[::-1]


def most_held(course: Sequence[Point], row: SiteRow) -> Point:
    """Return the highest point of a line, without results that were there only for a moment.

    Parameters
    ----------
    course : sequence of (int, int, int)
        The points of the line over the births of the program, in order; not empty.
    row : SiteRow
        The site of the line. It knows what lived between the points.
    """
    number, live, nbytes = max(course, key=lambda point: (point[1], point[0]))
    if not row.held and nbytes:
        # The site had few births: the last of them may be after the last point.
        at_peak = min(row.made, round(live * row.peak_nbytes / nbytes))
        return (number, at_peak, row.peak_nbytes) if at_peak >= NEVER_RELEASED * row.made else (number, live, nbytes)
    # Where a loop begins its list anew after a few turns, each point may be between two others.
    if live < EPOCHS or 2 * row.held < live:
        return number, live, nbytes
    return number, row.held, row.held_nbytes


def began_lately(course: Sequence[Point]) -> bool:
    """Return whether a line has results at too few points to show a rise."""
    return sum(live > 0 for _, live, _ in course) < PASSES_AT_LEAST


def trend_over_births(course: Sequence[Point]) -> Trend | None:
    """Return the steady growth of a line over the births of a program without passes, or None.

    A loop that reads all it has kept makes more births in each turn than in the turn before. Then
    the live count rises with the square root of all births. That of a cache that fills does not: it
    slows down more.

    Parameters
    ----------
    course : sequence of (int, int, int)
        The points of the line over the births of the program, in order.
    """
    trend = trend_of(course)
    if trend is None and _rises_by_a_root(course):
        first = course[0][0]
        return trend_of([(math.isqrt((number - first) * _FINE), live, nbytes) for number, live, nbytes in course])
    return trend


def _rises_by_a_root(course: Sequence[Point]) -> bool:
    if len(course) < PASSES_AT_LEAST:
        return False
    floors = _floors_of(course)
    if floors[-1] < _ALONE_AT_LEAST:
        return False
    first = next(number for number, count, _ in course if count)
    life = course[-1][0] - first
    return all(
        abs(floors[bisect_left(course, (first + part * life,))] / floors[-1] - math.sqrt(part)) <= tolerance
        for part, tolerance in _PARTS_OF_A_ROOT
    )


def doubt_of(kept: int) -> float:
    """Return the `doubt` of `trend_of` for a line of which a sample kept so many births.

    The first and the last third of the passes after the warm-up have about a quarter of these
    births each. Such a number varies by its square root.
    """
    return _DEVIATIONS * math.sqrt(2.0 / (kept / 4.0))


def _grows(
    before: Sequence[int], values: Sequence[int], early: Sequence[Point], points: Sequence[Point], doubt: float
) -> bool:
    """Return whether values grow steadily to the end.

    Parameters
    ----------
    before, early : sequence
        The values and the points of the warm-up.
    values, points : sequence
        The values and the points after it.
    doubt : float
        See `trend_of`.
    """
    third = len(values) // 3
    at_first, at_last = slice(0, third + 1), slice(-third - 1, None)
    for speed in (_speed, _rise):
        first, last = speed(points[at_first], values[at_first]), speed(points[at_last], values[at_last])
        # After a faster beginning this may be a cache that fills ever more slowly.
        speed_before = speed(early, before)
        slows = last * _FASTER_BEFORE < speed_before
        if last <= 0.0 or last < ((_JUST_AS_FAST if slows else _STILL_AS_FAST) - doubt) * first:
            return False
        if last * _MUCH_FASTER_BEFORE < speed_before and not _is_even(points, values):
            # The last items of a cache come at random times. A leak in a loop grows with each turn.
            return False
    if len(set(values)) < _VALUES_AT_LEAST or len(set(values[-third - 1 :])) < _VALUES_AT_LEAST // 3:
        return False
    size = len(values) // _BLOCKS
    if size >= 2:
        minima = [min(values[index : index + size]) for index in range(len(values) % size, len(values), size)]
        if all(before < after for before, after in pairwise(minima)):
            return True
    return max(values[:third]) < min(values[-third:]) and _steadiness(values) >= _STEADY


def _is_even(points: Sequence[Point], values: Sequence[int]) -> bool:
    """Return whether new levels are reached at even distances, up to the end."""
    reached = [points[0][0]]
    highest = values[0]
    for point, value in zip(points, values, strict=True):
        if value > highest:
            highest = value
            reached.append(point[0])
    reached.append(points[-1][0])
    gaps = [after - before for before, after in pairwise(reached)]
    return max(gaps) * len(gaps) <= _EVEN * sum(gaps)


def _speed(points: Sequence[Point], values: Sequence[int]) -> float:
    return _slope([point[0] for point in points], values)


def _rise(points: Sequence[Point], values: Sequence[int]) -> float:
    """Return the slope from the median of the first quarter to that of the last quarter.

    Unlike the median slope of all pairs it counts rare steps.
    """
    quarter = max(1, len(values) // 4)
    passes = [point[0] for point in points]
    # Points need not be at even distances.
    span = median(passes[-quarter:]) - median(passes[:quarter])
    return (median(values[-quarter:]) - median(values[:quarter])) / max(1, span)


def _slope(passes: Sequence[int], values: Sequence[int]) -> float:
    """Return the median slope of all pairs of points; 0 for a single point."""
    pairs = combinations(range(len(values)), 2)
    slopes = [(values[right] - values[left]) / (passes[right] - passes[left]) for left, right in pairs]
    return median(slopes) if slopes else 0.0


def _line(passes: Sequence[int], values: Sequence[int]) -> tuple[float, float]:
    """Return the slope of the line through a series, and its coefficient of determination."""
    slope = _slope(passes, values)
    start = median(value - slope * number for number, value in zip(passes, values, strict=True))
    mean = sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    missed = sum((value - start - slope * number) ** 2 for number, value in zip(passes, values, strict=True))
    return slope, 0.0 if total == 0 else max(0.0, 1.0 - missed / total)


def _steadiness(values: Sequence[int]) -> float:
    """Return the rank correlation (Kendall's tau) of values and order: -1 falls, 1 rises."""
    pairs = [(right > left) - (right < left) for left, right in combinations(values, 2)]
    return sum(pairs) / len(pairs)


def _thinned(points: Sequence[Point], limit: int) -> Sequence[Point]:
    """Return some of the points, spread evenly, with the last one."""
    if len(points) <= limit:
        return points
    step = -(-len(points) // limit)
    return points[(len(points) - 1) % step :: step]


# The phase of a program after its passes, such as a service after a training.


def phase_after_passes(births: int) -> int:
    """Return the number of the last birth in any pass, if the program went on without passes; or 0.

    It has if it made as many births since as in so many passes as show growth.

    Parameters
    ----------
    births : int
        The number of the last birth of the program.
    """
    names = [name for name, times in LOG.passes().items() if times >= PASSES_AT_LEAST]
    if not names:
        return 0
    end, before = max((end, before) for before, end in map(LOG.last_pass, names))
    return end if births - end >= PASSES_AT_LEAST * max(1, end - before) else 0


def is_of_phase(site: int, phase: int) -> bool:
    """Return whether a line has results of a phase, and never had as many before it.

    An evaluation at the end of each epoch had.

    Parameters
    ----------
    site : int
        The number of the site in the log.
    phase : int
        The number of the last birth before the phase.
    """
    # The points are counted from the last time that the log was cleared.
    phase -= LOG.cleared_at()
    course = LOG.series(site, None)
    before = max((live for number, live, _ in course if number <= phase), default=0)
    since = max((live for number, live, _ in course if number > phase), default=0)
    return since > _MORE_THAN_BEFORE * before


def course_over_births(site: int, phase: int = 0) -> list[Point]:
    """Return the points of a line over the births of the program, from a phase on.

    Parameters
    ----------
    site : int
        The number of the site in the log.
    phase : int, default 0
        The number of the last birth before the phase, from which births are counted.
    """
    course = LOG.series(site, None)
    if not phase:
        return course
    phase -= LOG.cleared_at()
    return [(number - phase, live, nbytes) for number, live, nbytes in course if number > phase]


# The growth of a line by the log of births.


_NAMES: Final = 8
"""So many names of passes are looked at, those with the most passes."""
_NESTED_COMPREHENSIONS: Final = tuple(f"{outer}.{inner}" for outer in COMPREHENSIONS for inner in COMPREHENSIONS)
"""How the qualified name of a comprehension inside a comprehension ends."""


@final
class Evidence:
    """The growth of lines since a detector was opened, each computed once.

    Parameters
    ----------
    beginning : Beginning
        The counts of the log when the detector was opened.
    last : int
        The number of the last birth that counts.
    goes_on : bool, default False
        Whether the program runs on: then a line may still make more.

    Attributes
    ----------
    goes_on : bool
        As given.
    last : int
        How many births there were since the beginning.
    passes : dict
        How many passes of each name there were since the beginning.
    """

    def __init__(self, beginning: Beginning, last: int, *, goes_on: bool = False) -> None:
        self.goes_on = goes_on
        self._opened = beginning.after
        self._before = beginning.passes
        passes = self.passes = {name: times - self._before.get(name, 0) for name, times in LOG.passes().items()}
        most_first = sorted(passes.items(), key=lambda item: -item[1])
        names = [name for name, times in most_first if times >= PASSES_AT_LEAST]
        names = ([name for name in names if name not in UNASKED] or names)[:_NAMES]
        self._names = names if beginning.has_series else []
        self.last = last - beginning.after
        self._known: dict[int, list[tuple[str, Trend]]] = {}
        # The rows of all sites, once they are asked for.
        self._rows: list[SiteRow] = []
        # The number of the last birth before what this is about: the run, or its last phase.
        self._start = beginning.after
        self._after_passes: Evidence | None = None
        phase = phase_after_passes(last) if self._names else 0
        if phase:
            self._after_passes = after_passes = copy(self)
            after_passes._start, after_passes._names, after_passes._known = phase, [], {}
            after_passes.last = last - phase

    def of(self, births: Births) -> Evidence:
        """Return the evidence for a line: of the phase after the passes if the line is of that."""
        site, phase = births.site_number, self._after_passes
        if phase is None or site is None or not births.has_series or not is_of_phase(site, phase._start):
            return self
        return phase

    def numbers(self, births: Births) -> list[int]:
        """Return the numbers of the births of a line that this is about, in order, from 1 on."""
        after = self._start - self._opened
        return [number - after for number in births.numbers() if number > after]

    def _course(self, births: Births, site: int) -> list[Point]:
        # Without `has_series` the number may be that of another line by now.
        phase = 0 if self._start == self._opened else self._start
        return course_over_births(site, phase) if births.has_series else []

    @property
    def watched_passes(self) -> bool:
        """Return whether there were enough passes to see growth over them."""
        return bool(self._names)

    @property
    def watched_loops(self) -> bool:
        """Return whether the program itself marks passes, beside steps of an optimizer."""
        return any(name not in UNASKED for name in self._names)

    def watched(self, births: Births) -> bool:
        """Return whether the scopes of some births were passed often enough to see growth."""
        return bool(self._names) and all(not scope or scope in self._names for scope in births.scopes())

    def is_in_a_row(self, births: Births, are_apart: Callable[[], bool]) -> bool:
        """Return whether a comprehension that runs once makes the results of a line: a table.

        False where it runs several times, as in each epoch.

        Parameters
        ----------
        births : Births
            The births of the living results of a line.
        are_apart : callable
            Returns whether the results are in several containers.
        """
        mark = births.mark
        if not births.function.endswith(COMPREHENSIONS) and (mark is None or not is_in_comprehension(*mark)):
            return False
        # A table of tables has several containers too.
        if not births.function.endswith(_NESTED_COMPREHENSIONS) and are_apart():
            return False
        gaps = [after - before for before, after in pairwise(sorted(births.numbers()))]
        long = _GAP * median(gaps) if gaps else 0
        return sum(gap > long for gap in gaps) < _DISTANCES_BETWEEN_RUNS

    def trend_of(
        self,
        births: Births,
        sizes: Sequence[int],
        *,
        have_parts: bool = False,
        are_apart: Callable[[], bool],
    ) -> Trend | None:
        """Return how a line grows, or None if it does not.

        Parameters
        ----------
        births : Births
            The births of the living results of a line.
        sizes : sequence of int
            The bytes of each of them.
        have_parts : bool, default False
            Whether they are models.
        are_apart : callable
            See `is_in_a_row`.
        """
        site = births.site_number
        if site is None:
            return None
        if not self._names:
            # The records may not be in the order of the births.
            after = self._start - self._opened
            weights = births.weights() or [1.0] * len(sizes)
            rows = sorted(
                (number - after, nbytes, weight)
                for number, nbytes, weight in zip(births.numbers(), sizes, weights, strict=True)
                if number > after
            )
            if not rows:
                return None
            numbers, sizes, weights = ([*column] for column in zip(*rows, strict=True))
            if births.has_series and (births.made == 1 or joins(LOG.site(site))) and not births.are_of_several_sites:
                joined = self._course(births, site)
                if live := replaced(joined):
                    return _trend_of_replaced(joined, live, births.made, numbers[-1], self.last)
            if self.were_gathered(births, sizes):
                return None

            def course() -> Sequence[Point]:
                if births.are_of_several_sites:
                    # The log has no single series. At each birth at least the earlier ones of those
                    # that are alive now were alive.
                    return [*zip(numbers, count(1), accumulate(sizes), strict=False)]
                return self._course(births, site)

            return trend_of_births(
                numbers,
                sizes,
                births.made,
                self.last,
                course,
                in_a_row=self.is_in_a_row(births, are_apart),
                have_parts=have_parts,
                weights=weights,
            )
        if site not in self._known:
            self._known[site] = [
                (name, trend)
                for name, series in zip(self._names, self._series_of(births, site), strict=False)
                if (trend := trend_of(series)) is not None and not becomes_larger_alone(trend, LOG.site(site))
            ]
        found = [trend for name, trend in self._known[site] if not _are_of_last_pass(births, name, trend)]
        return max(found, key=lambda trend: trend.fit, default=None)

    def trend_of_wrapped(self, births: Births, nbytes: int, parts: int) -> Trend | None:
        """Return the growth of the model of a line that has all earlier ones in it; or None.

        Parameters
        ----------
        births : Births
            The births of the line.
        nbytes : int
            The bytes of the model.
        parts : int
            How many modules, parameters and buffers it has.
        """
        site = births.site_number
        if parts < births.live:
            # Others are alive for another reason, such as a cycle.
            return None
        if site is None or not births.has_series or len(births.numbers()) * _PARTS_IN_ONE > births.live:
            return None
        if births.live < max(BIRTHS_AT_LEAST, NEVER_RELEASED * births.made):
            return None
        trend = trend_over_births(self._course(births, site))
        if trend is None or LOG.site(site).last_birth - self._start < _UNTIL_THE_END * self.last:
            return None
        made = births.made
        return replace(
            trend,
            over="births",
            passes=made,
            count_per_pass=1 / made,
            nbytes_per_pass=nbytes / made,
            # There is one model at any time, with the modules that were in it then.
            series=tuple((number, 1, round(nbytes * count / births.live)) for number, count, _ in trend.series),
        )

    def were_gathered(self, births: Births, sizes: Sequence[int]) -> bool:
        """Return whether the program put the results together in the end: see `was_gathered`."""
        site = births.site_number
        if site is None or not sizes or not births.is_known_still:
            return False
        if not self._rows:
            self._rows += map(LOG.site, range(LOG.site_count()))
        return was_gathered(sum(sizes), max(sizes), LOG.site(site).last_birth, self._rows)

    def released_nothing(self, births: Births, share: float = 1.0) -> bool:
        """Return whether a line released next to nothing; the parameters are those of `stays`."""
        return births.count >= NEVER_RELEASED * births.made * share

    def stays(self, births: Births, share: float = 1.0) -> bool:
        """Return whether the results of a line stay.

        They do if it released almost nothing, or releases less than it makes until the end.

        Parameters
        ----------
        births : Births
            The births of the living results of a line.
        share : float, default 1.0
            The share of the births of the line that are results: the log counts the modules in a
            model too.
        """
        if self.released_nothing(births, share):
            return True
        site = births.site_number
        if site is None or not births.has_series:
            return False
        if not self._names:
            course = self._course(births, site)
            keeps = births.count * MADE_FOR_ONE >= births.made * share
            # Beside what an expression makes on the way, a few are enough.
            return rises(course) or (keeps and (began_lately(course) or rises(course, EPOCHS)))
        return self.rises(births)

    def rises(self, births: Births) -> bool:
        """Return whether what stays of a line rises over passes, from some moment on."""
        site = births.site_number
        # Add a point for now: more may have been made after the last pass.
        now = round(births.live)
        courses = [] if site is None else [series for series in self._series_of(births, site) if series]
        return any(rises([*series, (series[-1][0] + 1, now, 0)]) for series in courses)

    def stopped(self, births: Births) -> bool:
        """Return whether a line has no more than half of the passes ago.

        That is what a cache has that is full, and a data set that was there before the first pass.
        """
        site = births.site_number
        courses = [] if site is None else [series for series in self._series_of(births, site) if series]
        at_half = [bisect_left(series, (series[-1][0] * STOPPED,)) for series in courses]
        live = births.live
        return bool(courses) and all(series[place][1] >= live for series, place in zip(courses, at_half, strict=True))

    def may_grow(self, births: Births) -> bool:
        """Return whether a line may be growing, but its sample is too small to tell.

        False where every birth was kept.
        """
        site, kept = births.site_number, births.kept
        if site is None or kept is None:
            return False
        return any(trend_of(series, doubt=doubt_of(kept)) is not None for series in self._series_of(births, site))

    def _series_of(self, births: Births, site: int) -> list[list[Point]]:
        # Without `has_series` the number may be that of another line by now.
        return [self._series(site, name) for name in self._names] if births.has_series else []

    def _series(self, site: int, name: str) -> list[Point]:
        """Return the points of a site over the passes of a name since the beginning, from 1 on."""
        before = self._before.get(name, 0)
        return [(number - before, count, nbytes) for number, count, nbytes in LOG.series(site, name) if number > before]
