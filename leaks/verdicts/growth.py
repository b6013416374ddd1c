"""Whether something grows: over the passes of a loop, or over births."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import median
from typing import Final, final

from ..births.lines import Births
from ..births.log import LOG
from ..report.leaks import Trend

__all__ = [
    "HANDED_OVER",
    "STEP",
    "Evidence",
    "trend_of",
    "trend_of_births",
]

# Whether something grows: from the course of what lives over the passes of a loop, or over births.
#
# What grows is told from what merely moves. A warm-up is left out; of the rest the lower envelope
# counts, so that saw-teeth do not; the growth has to go on to the end at the same speed, so that a
# cache which fills does not; and it has to be steadier than chance, so that noise does not. In case
# of doubt nothing is told.
#
# The slope is the median of all slopes (Theil 1950, Sen 1968), which a few outliers do not move;
# the steadiness is the rank correlation of Mann (1945) and Kendall.


Point = tuple[int, int, int]
"""Pass, live count, live bytes."""

PASSES_AT_LEAST: Final = 16
_POINTS: Final = 96
_SHOWN: Final = 200
_WARM_UP: Final = 4
_BLOCKS: Final = 12
_STEADY: Final = 0.8
_STILL_AS_FAST: Final = 0.7
_JUST_AS_FAST: Final = 0.75
_FASTER_BEFORE: Final = 2.0
_MUCH_FASTER_BEFORE: Final = 4.0
_EVEN: Final = 2.5
_LEVELS: Final = 9

_BIRTHS_AT_LEAST: Final = 16
_SURVIVING: Final = 0.5
_OTHERS: Final = 3
_UNTIL_THE_END: Final = 0.9
_FROM_THE_START: Final = 0.5
_GAP: Final = 4.0


def trend_of(series: Sequence[Point]) -> Trend | None:
    """The steady growth in the course of a line's live resources, or None where there is none.

    Parameters
    ----------
    series : sequence of (int, int, int)
        Pass, live count and live bytes, in order.
    """
    if len(series) < PASSES_AT_LEAST:
        return None
    warm_up = len(series) // _WARM_UP
    points = _thinned(series[warm_up:], _POINTS)
    before = _thinned(series[: warm_up + 1], _POINTS)
    if not any(
        _grows([point[of] for point in before], [point[of] for point in points], before, points) for of in (1, 2)
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
        series=tuple(_thinned(series, _SHOWN)),
    )


def trend_of_births(numbers: Sequence[int], sizes: Sequence[int], births: int, last: int) -> Trend | None:
    """The growth of a line in a program that marks no passes: where all along the program half of what it makes stays.

    Each birth of the line is a pass then.

    Parameters
    ----------
    numbers : sequence of int
        The numbers of the births of what is left, in order.
    sizes : sequence of int
        The bytes of each.
    births : int
        How many the line made in all.
    last : int
        The number of the last birth of the program.
    """
    count = len(numbers)
    if count < _BIRTHS_AT_LEAST or count < _SURVIVING * births:
        return None
    spread = numbers[-1] - numbers[0]
    # A list of samples is made in a row, before the loop begins; what a loop keeps has others in
    # between, to the end.
    if spread < _OTHERS * count or numbers[-1] < _UNTIL_THE_END * last or spread < _FROM_THE_START * last:
        return None
    gaps = [after - before for before, after in pairwise(numbers)]
    if max(gaps) > _GAP * spread / (count - 1):
        return None
    total = 0
    series: list[Point] = []
    for index, nbytes in enumerate(sizes, 1):
        total += nbytes
        series.append((index, index, total))
    return Trend(count, 1.0, total / count, 1, 1.0, tuple(_thinned(series, _SHOWN)))


def _grows(before: Sequence[int], values: Sequence[int], early: Sequence[Point], points: Sequence[Point]) -> bool:
    third = len(values) // 3
    at_first, at_last = slice(0, third + 1), slice(-third - 1, None)
    for speed in (_speed, _rise):
        first, last = speed(points[at_first], values[at_first]), speed(points[at_last], values[at_last])
        # What was faster still at its beginning may be a cache that fills ever more slowly.
        speed_before = speed(early, before)
        slows = last * _FASTER_BEFORE < speed_before
        if last <= 0.0 or last < (_JUST_AS_FAST if slows else _STILL_AS_FAST) * first:
            return False
        if last * _MUCH_FASTER_BEFORE < speed_before and not _is_even(points, values):
            # The last places of a cache are filled by chance, what leaks in a loop goes step by
            # step.
            return False
    if len(set(values)) < _LEVELS or len(set(values[-third - 1 :])) < _LEVELS // 3:
        return False
    size = len(values) // _BLOCKS
    if size >= 2:
        minima = [min(values[index : index + size]) for index in range(len(values) % size, len(values), size)]
        if all(before < after for before, after in pairwise(minima)):
            return True
    return max(values[:third]) < min(values[-third:]) and _steadiness(values) >= _STEADY


def _is_even(points: Sequence[Point], values: Sequence[int]) -> bool:
    """Whether new levels are reached at even distances, up to the end."""
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
    """The same from the level at its beginning to the level at its end: steps that are rare count here."""
    some = max(1, len(values) // 4)
    span = points[-1][0] - points[0][0]
    return (median(values[-some:]) - median(values[:some])) / max(1, span)


def _slope(places: Sequence[int], values: Sequence[int]) -> float:
    pairs = combinations(range(len(values)), 2)
    slopes = [(values[right] - values[left]) / (places[right] - places[left]) for left, right in pairs]
    return median(slopes) if slopes else 0.0


def _line(places: Sequence[int], values: Sequence[int]) -> tuple[float, float]:
    """The slope of the line through a course, and how much of the course it explains."""
    slope = _slope(places, values)
    start = median(value - slope * place for place, value in zip(places, values, strict=True))
    mean = sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    missed = sum((value - start - slope * place) ** 2 for place, value in zip(places, values, strict=True))
    return slope, 0.0 if total == 0 else max(0.0, 1.0 - missed / total)


def _steadiness(values: Sequence[int]) -> float:
    """How much more often a later value is the greater one: from -1, always falling, to 1, always rising."""
    pairs = [(right > left) - (right < left) for left, right in combinations(values, 2)]
    return sum(pairs) / len(pairs)


def _thinned(points: Sequence[Point], limit: int) -> Sequence[Point]:
    """Some of the points, evenly, the last with them."""
    if len(points) <= limit:
        return points
    step = -(-len(points) // limit)
    return points[(len(points) - 1) % step :: step]


# What the log of births says of the growth of a line.


STEP: Final = "optimizer step"
HANDED_OVER: Final = "handed over to the parent"
"""The names of passes that nobody asked for: they count where there are no others."""

_NAMES: Final = 8


@final
class Evidence:
    """The growth of the lines of one log, each asked for once.

    Parameters
    ----------
    after : int
        The number of the last birth before the detector was opened.
    """

    def __init__(self, after: int) -> None:
        passes: dict[str, int] = LOG.passes()
        often = sorted(passes.items(), key=lambda item: -item[1])
        names = [name for name, times in often if times >= PASSES_AT_LEAST]
        self._names = ([name for name in names if name not in (STEP, HANDED_OVER)] or names)[:_NAMES]
        self._after = after
        self._last: int = LOG.counts()[0] - after
        self._known: dict[int, Trend | None] = {}

    @property
    def watched_passes(self) -> bool:
        """Whether there were passes enough to see what grows over them."""
        return bool(self._names)

    def watched(self, births: Births) -> bool:
        """Whether the scopes of some births were passed often enough for that, by their names."""
        return bool(self._names) and all(not scope or scope in self._names for scope in births.scopes())

    def trend_of(self, births: Births, sizes: Sequence[int]) -> Trend | None:
        """How a line grows, or None where it does not.

        Parameters
        ----------
        births : Births
            The births of what is there of one line.
        sizes : sequence of int
            The bytes of each.
        """
        site = births.site_number
        if site is None:
            return None
        if not self._names:
            numbers = births.numbers(self._after)
            if any(after < before for before, after in pairwise(numbers)):
                # The records were ordered otherwise.
                rows = sorted(zip(numbers, sizes, strict=True))
                numbers, sizes = [number for number, _ in rows], [nbytes for _, nbytes in rows]
            return trend_of_births(numbers, sizes, births.made, self._last)
        if site not in self._known:
            # What the log has forgotten meanwhile, and knows something else by that number now,
            # shows no growth.
            names = self._names if births.is_known_still else ()
            found = [trend for name in names if (trend := trend_of(LOG.series(site, name))) is not None]
            self._known[site] = max(found, key=lambda trend: trend.fit, default=None)
        return self._known[site]
