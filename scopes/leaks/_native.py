"""Memory that grows though nothing that is tracked does: of extensions, of the interpreter, of native libraries."""

from __future__ import annotations

from typing import Final

from ._growth import trend_of
from ._leak import Leak
from ._tensorless import leak_without_tensor
from ._timeline import Sample, Timeline
from ._trend import Trend

__all__ = ["native_growth", "native_trend"]

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
