"""Leaks that are no tensors: open scopes, and memory of the process that no tensor explains."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, cast, final

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import Site, line_of_frame, site_of
from ..births.open_scopes import OPENINGS, Opening
from ..report.leaks import Leak, LeakKind, Sureness, Trend, bare_leak
from ..report.timeline import Pass, Sample, Timeline
from .growth import trend_of

if TYPE_CHECKING:
    from ...scopes.scope import DisposeScope

__all__ = [
    "OwnMemory",
    "growth_of_own_memory",
    "native_growth",
    "native_trend",
    "unclosed_scopes",
]


def leak_without_tensor(
    kind: LeakKind,
    sure: Sureness,
    nbytes: int,
    what: str,
    remedy: str,
    *,
    site: Site | None = None,
    scopes: tuple[str | None, ...] = (),
    age_s: float | None = None,
    trend: Trend | None = None,
) -> Leak:
    """Return a leak that is no tensor. Its fingerprint is of its line and the name of its scope."""
    named = scopes[0] if scopes else None
    leak = bare_leak(kind, sure, nbytes, f"{what}: {remedy}.", site=site, name=named)
    return replace(leak, scopes=scopes, oldest_age_s=age_s, trend=trend, remedy=remedy)


# Open scopes whose block is not running: they were not closed, or their block is suspended.


_COROUTINE: Final = 0x80
"""``inspect.CO_COROUTINE``, without its import."""
_SUSPENDS: Final = 0x2A0
"""``inspect.CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR``."""


def unclosed_scopes(*, of_program: bool) -> list[Leak]:
    """Return the open scopes whose block has ended or is suspended, those with most bytes first.

    Parameters
    ----------
    of_program : bool
        Whether the program is over: then a suspended generator or task never goes on. While the
        program runs it may, and is not reported.
    """
    running = _running_frames()
    found: list[Leak] = []
    for opening in OPENINGS.open_scopes():
        scope = opening.reference()
        code = opening.code
        if scope is None or code is None or (opening.frame_id, id(code)) in running:
            continue
        suspends = bool(code.co_flags & _SUSPENDS) or scope._frame is not None
        if suspends and not of_program:
            continue
        found.append(_unclosed(opening, cast("DisposeScope", scope), code, suspends))
    found.sort(key=lambda leak: (-leak.nbytes, str(leak.site)))
    return found


def _unclosed(opening: Opening, scope: DisposeScope, code: CodeType, suspends: bool) -> Leak:
    subject = "A scope without a name" if not opening.name else f"The scope {opening.name!r}"
    site = site_of(opening.mark)
    kind: LeakKind = "scope"
    sure: Sureness = "certain"
    if suspends:
        kind, sure = "suspended", "likely"
        block = "task" if code.co_flags & _COROUTINE else "generator"
        frame = scope._frame
        where = "" if frame is None else f" at line {line_of_frame(frame)}"
        text = f"{subject} is open in the {block} {code.co_qualname}(), which is suspended{where} and does not go on"
        remedy = f"close the {block}, or let it run to its end"
    else:
        text = f"{subject} was entered and not closed"
        remedy = "use a with statement, or call close()"
    return leak_without_tensor(
        kind,
        sure,
        scope.nbytes,
        text,
        remedy,
        site=site,
        scopes=(opening.name,),
        age_s=max(0.0, time.monotonic() - opening.at_s),
    )


def _running_frames() -> set[tuple[int, int]]:
    """Return the ``id`` of each frame, and that of its code, that runs on any thread."""
    found: set[tuple[int, int]] = set()
    above: FrameType | None
    for above in list(sys._current_frames().values()):
        while above is not None:
            found.add((id(above), id(above.f_code)))
            # It ends as None: a variable of this frame that refers to the frame would be a cycle,
            # which only the garbage collector frees.
            above = above.f_back
    return found


# Memory of the process that grows while tracked memory does not: of extensions, the interpreter or
# native libraries.


_WORTH_NBYTES: Final = 16_000_000
"""Growth by fewer bytes is not reported; docs/leak-report.md says so."""
_WORTH_SHARE: Final = 0.05
"""Nor is growth by less than this share of the memory at the beginning."""
_SAMPLES_AT_LEAST: Final = 24
"""With fewer samples of the memory no growth is reported."""
_LARGE_STEPS: Final = 2
"""So many steps of a worker's memory may be a collection of garbage, or what the parent wrote."""
_DOUBT: Final = 0.2
"""The `doubt` of `trend_of`: an allocator takes a few megabytes at once, as for a new thread."""
_REST: Final = 4
"""Without the large steps, at least one part in so many of what was copied must be left."""


def native_growth(timeline: Timeline) -> tuple[Leak, ...]:
    """Return growth of the process's memory that neither tracked memory nor caches explain."""
    trend = native_trend(timeline.samples, timeline.passes)
    if trend is None:
        return ()
    nbytes = trend.series[-1][2] - trend.series[0][2]
    memory = (
        "anonymous memory of the process, swap included,"
        if _is_anonymous_known(timeline.samples)
        else "resident memory (this system does not report anonymous memory and swap)"
    )
    what = (
        f"The {memory} grows, and neither tracked tensors, nor the caches of allocators, nor free lists of "
        "the C library do"
    )
    remedy = "look for Python objects with tracemalloc, and for native code with a native profiler"
    return (leak_without_tensor("native", "possible", nbytes, what, remedy, trend=trend),)


def native_trend(samples: Sequence[Sample], passes: Sequence[Pass]) -> Trend | None:
    """Return the steady growth from pass to pass of memory neither tracked nor cached, or None.

    It is the growth of anonymous memory, swap included; of resident memory where the system does
    not report these. Growth in large steps, in which allocators take memory from the system, does
    not count, nor does memory that is given back, nor what grows less than tracked and cached
    memory do.

    Parameters
    ----------
    samples : sequence of Sample
        The memory over time.
    passes : sequence of Pass
        The ends of passes. The passes of the name with the most of them are taken.
    """
    if not passes:
        return None
    first, last = passes[0].t_s, passes[-1].t_s
    samples = [sample for sample in samples if first <= sample.t_s <= last]
    if len(samples) < _SAMPLES_AT_LEAST:
        return None
    is_known = _is_anonymous_known(samples)
    untracked = [_untracked(sample, is_known) for sample in samples]
    grown = untracked[-1] - untracked[len(untracked) // 4]
    total = (samples[0].anonymous_nbytes if is_known else None) or samples[0].rss_nbytes
    # Larger and larger tensors need larger buffers of native code too, and leave larger gaps.
    known = [*accumulate((_known(sample) for sample in samples), max)]
    if grown < max(_WORTH_NBYTES, _WORTH_SHARE * total, known[-1] - known[len(known) // 4]):
        return None
    if trend_of([(index, 1, nbytes) for index, nbytes in enumerate(untracked, 1)]) is None:
        return None
    name = max(passes, key=lambda end: end.index).name
    ends = [end for end in passes if end.name == name]
    # The last sample before each end of a pass; several passes may end between two samples.
    times = [end.t_s for end in ends]
    by_pass: dict[int, int] = {}
    for sample, nbytes in zip(samples, untracked, strict=True):
        number = bisect_left(times, sample.t_s)
        if number < len(ends):
            by_pass[ends[number].index] = nbytes
    return trend_of([(index, 0, nbytes) for index, nbytes in by_pass.items()], doubt=_DOUBT)


def _is_anonymous_known(samples: Sequence[Sample]) -> bool:
    return all(sample.anonymous_nbytes is not None for sample in samples)


def _untracked(sample: Sample, is_anonymous_known: bool) -> int:
    """Return the bytes of the process that are neither tracked nor in the cache of an allocator."""
    own = sample.anonymous_nbytes if is_anonymous_known else None
    return max(0, (sample.rss_nbytes if own is None else own) - _known(sample))


def _known(sample: Sample) -> int:
    """Return the bytes of the host that are tracked, or in the cache of an allocator."""
    on_host = sum(nbytes for device, nbytes in sample.live_nbytes.items() if device.startswith("cpu"))
    return on_host + sample.cached_nbytes


@final
@dataclass(frozen=True, slots=True)
class OwnMemory:
    """The memory of a forked process at the end of a pass.

    Attributes
    ----------
    index : int
        The number of the pass.
    own_nbytes : int
        The memory that it has written, and so shares with no other process.
    known_nbytes : int
        The bytes of tracked tensors, and those that allocators keep.
    anonymous_nbytes : int
        Its anonymous memory, shared pages included.
    """

    index: int
    own_nbytes: int
    known_nbytes: int
    anonymous_nbytes: int


def growth_of_own_memory(points: Sequence[OwnMemory]) -> tuple[Leak, ...]:
    """Return the growth of a forked process's own memory that is not known: one leak or none.

    It is reported if it grows steadily, or if the process copies memory of its parent pass by pass.
    A copy need not grow steadily: a loader that shuffles reads objects at random, so that ever
    fewer pages are left to copy. If all comes at one or two passes it is no leak, but a collection
    of garbage, or memory that the parent has written.
    """
    if not points:
        return ()
    # Count from the first point: what the process got from its parent before is not in question.
    first = points[0]
    series = [
        (point.index, 0, max(0, point.own_nbytes - first.own_nbytes - point.known_nbytes + first.known_nbytes))
        for point in points
    ]
    trend = trend_of(series)
    if series[-1][2] - series[len(series) // 4][2] < _WORTH_NBYTES:
        trend = None
    copied = _copied_nbytes(points)
    if trend is None and not _is_bit_by_bit(copied):
        return ()
    nbytes = copied[-1] if trend is None else series[-1][2]
    if copied[-1] * 2 >= nbytes:
        what = (
            f"A worker process copies the memory of its parent page by page, {bytes_text(copied[-1])} until now, as "
            "the reference counts in Python objects are written when they are read"
        )
        remedy = "keep what workers read in arrays (NumPy, PyTorch, PyArrow) instead of lists and dicts of objects"
    else:
        what = "The memory that a worker process has for itself grows, and neither tracked tensors nor caches do"
        remedy = "look for Python objects with tracemalloc, and for native code with a native profiler"
    return (leak_without_tensor("native", "possible", nbytes, what, remedy, trend=trend),)


def _copied_nbytes(points: Sequence[OwnMemory]) -> list[int]:
    """Return the bytes that had been copied from the parent at each point since the first.

    A copied page is own memory that is new, but it was anonymous memory of the process before.
    """
    first = points[0]
    copied = (
        point.own_nbytes
        - first.own_nbytes
        - max(point.anonymous_nbytes - first.anonymous_nbytes, point.known_nbytes - first.known_nbytes)
        for point in points
    )
    # Own memory that is given back does not undo copies.
    return list(accumulate(copied, max, initial=0))


def _is_bit_by_bit(copied: Sequence[int]) -> bool:
    """Return whether much was copied, and a good part of it outside the two largest steps."""
    steps = sorted(after - before for before, after in pairwise(copied))
    total = copied[-1]
    return total >= _WORTH_NBYTES and sum(steps[:-_LARGE_STEPS]) * _REST >= total
