"""Leaks that are no tensor: a scope that is not closed, native memory, memory of nobody."""

from __future__ import annotations

import os
import sys
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from ...scopes.sites import Site, site_of
from ..births.open_scopes import OPENINGS, Opening
from ..report.leaks import Leak, LeakKind, Sureness, Trend, excerpt_of, fingerprint_of
from ..report.timeline import Sample, Timeline
from .growth import trend_of

if TYPE_CHECKING:
    from ...scopes.scope import DisposeScope

__all__ = [
    "leak_without_tensor",
    "native_growth",
    "native_trend",
    "unclosed_scopes",
]

# Leaks of what is no tensor: a scope that is not closed, memory of nobody.


def leak_without_tensor(
    kind: LeakKind,
    sure: Sureness,
    nbytes: int,
    explanation: str,
    *,
    site: Site | None = None,
    scopes: tuple[str | None, ...] = (),
    age_s: float | None = None,
    trend: Trend | None = None,
) -> Leak:
    """One thing that is there and should not be; told apart from others by its line and the name of its scope."""
    return Leak(
        kind=kind,
        sure=sure,
        tensor=None,
        tensor_kind=None,
        device=None,
        count=1,
        nbytes=nbytes,
        used_nbytes=nbytes,
        site=site,
        frames=() if site is None else (site,),
        op=None,
        state="alive",
        disposal=None,
        scopes=scopes,
        oldest_age_s=age_s,
        newest_age_s=None,
        generation=None,
        trend=trend,
        holders=(),
        carriers=(),
        members=(),
        explanation=explanation,
        fingerprint=fingerprint_of(kind, None, site, scopes[0] if scopes else None),
        pid=os.getpid(),
        excerpt=excerpt_of(site),
        records=(),
    )


# Scopes that are open though nobody is in their block: not closed, or of a suspended generator or
# coroutine.


_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE
_SUSPENDS: Final = 0x2A0  # inspect.CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def unclosed_scopes(*, of_program: bool) -> list[Leak]:
    """The scopes that are open though their block is over, or suspended, worst first.

    Parameters
    ----------
    of_program : bool
        Whether the program is over: what is suspended then stays so. While it runs, a suspended
        generator or task may go on, and is not told of.
    """
    running = _running()
    found: list[Leak] = []
    for opening in OPENINGS.open_scopes():
        scope = opening.reference()
        code = opening.code
        if scope is None or code is None or (opening.frame_id, code) in running:
            continue
        suspends = bool(code.co_flags & _SUSPENDS) or scope._frame is not None
        if suspends and not of_program:
            continue
        found.append(_leak(opening, scope, code, suspends))
    found.sort(key=lambda leak: (-leak.nbytes, str(leak.site)))
    return found


def _leak(opening: Opening, scope: DisposeScope, code: CodeType, suspends: bool) -> Leak:
    called = "A scope without a name" if not opening.name else f"The scope {opening.name!r}"
    site = site_of(opening.mark)
    kind: LeakKind = "scope"
    sure: Sureness = "certain"
    if suspends:
        kind, sure = "suspended", "likely"
        what = "task" if code.co_flags & _COROUTINE else "generator"
        frame = scope._frame
        where = "" if frame is None or frame.f_lineno is None else f" at line {frame.f_lineno}"
        text = (
            f"{called} is open in the {what} {code.co_qualname}(), which is suspended{where} and does not go on: close "
            f"the {what}, or let it run to its end."
        )
    else:
        text = f"{called} was entered and not closed: use a with statement, or call close()."
    return leak_without_tensor(
        kind,
        sure,
        scope.nbytes,
        text,
        site=site,
        scopes=(opening.name,),
        age_s=max(0.0, time.monotonic() - opening.at_s),
    )


def _running() -> set[tuple[int, CodeType]]:
    """The frames that run on any thread, and the code of each."""
    found: set[tuple[int, CodeType]] = set()
    above: FrameType | None
    for above in list(sys._current_frames().values()):
        while above is not None:
            found.add((id(above), above.f_code))
            # None in the end: a frame that has its own frame in a variable is garbage that only the
            # collector frees.
            above = above.f_back
    return found


# Memory that grows though nothing that is tracked does: of extensions, of the interpreter, of
# native libraries.


_WORTH_NBYTES: Final = 16_000_000
_SHARE: Final = 0.05
_SAMPLES: Final = 24


def native_growth(timeline: Timeline) -> tuple[Leak, ...]:
    """The growth of the resident memory while passes went by that neither tracked memory nor caches explain."""
    if not timeline.passes:
        return ()
    first, last = timeline.passes[0].t_s, timeline.passes[-1].t_s
    trend = native_trend(tuple(sample for sample in timeline.samples if first <= sample.t_s <= last))
    if trend is None:
        return ()
    nbytes = trend.series[-1][2] - trend.series[0][2]
    explanation = (
        "The resident memory grows, and neither tracked tensors, nor the caches of allocators, nor free lists of "
        "the C library do: look for Python objects with tracemalloc, and for native code with a native profiler."
    )
    return (leak_without_tensor("native", "possible", nbytes, explanation, trend=trend),)


def native_trend(samples: tuple[Sample, ...]) -> Trend | None:
    """The steady growth of what samples tell of memory that is resident and neither tracked nor cached; None if none.

    What grows in steps as allocators take memory from the system, and what is given back, is none.
    """
    if len(samples) < _SAMPLES:
        return None
    series = [(index, 1, _untracked(sample)) for index, sample in enumerate(samples, 1)]
    grown = series[-1][2] - series[len(series) // 4][2]
    if grown < max(_WORTH_NBYTES, _SHARE * samples[0].rss_nbytes):
        return None
    return trend_of(series)


def _untracked(sample: Sample) -> int:
    on_host = sum(nbytes for device, nbytes in sample.live_nbytes.items() if device.startswith("cpu"))
    return max(0, sample.rss_nbytes - on_host - sample.cached_nbytes)
