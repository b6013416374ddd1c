"""How the number of live resources of a line went over the passes of a loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["Trend"]


@final
@dataclass(frozen=True, slots=True)
class Trend:
    """A growth from pass to pass.

    Attributes
    ----------
    passes : int
        How many passes were looked at.
    count_per_pass : float
        How many resources more there are after each pass.
    nbytes_per_pass : float
        How many bytes more.
    first_pass : int
        The pass from which on it grew; what came before was warm-up.
    fit : float
        How much of the course the steady growth explains, from 0 to 1.
    series : tuple of (int, int, int)
        The course itself: pass, live count, live bytes; at most 200 of the passes.
    """

    passes: int
    count_per_pass: float
    nbytes_per_pass: float
    first_pass: int
    fit: float
    series: tuple[tuple[int, int, int], ...]
