"""The statistics and the peak of a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from ..leaks.report.peak import Advice, LinePeak, peak_lines
from ..scopes.base.process import bytes_text

__all__ = ["Peak", "Replan", "WorkspaceStatistics", "times"]


_REASONS_SHOWN: Final = 20
"""So many reasons for misses are listed; the others are counted in one line."""


def times(count: int) -> str:
    """Return how often something was, in words."""
    return "once" if count == 1 else f"{count:,} times"


@final
@dataclass(frozen=True, slots=True)
class Replan:
    """A plan that replaced an earlier one.

    Attributes
    ----------
    number : int
        The number of the pass after which it was made, from 1 on.
    key : object
        The key of that pass.
    reason : str
        What did not fit into the earlier plan, and the line.
    line : str
        The line, such as ``"train.py:41"``.
    """

    number: int
    key: object
    reason: str
    line: str


@final
@dataclass(frozen=True, slots=True)
class WorkspaceStatistics:
    """The statistics of a workspace, for all its threads together.

    Attributes
    ----------
    passes : int
        Passes that have ended.
    slab_nbytes : int
        The bytes of its slabs.
    bound_nbytes : int
        The most bytes that planned blocks have in use at once, in the largest plan: no slab can be
        smaller. With several threads, the sum over their slabs.
    hits, misses : int
        Births that were served from a slab, and planned births that were not.
    escapes : int
        Blocks that outlived their pass.
    reasons : mapping of str to int
        By the reason for misses, with the line, their number. After 500 reasons all further ones
        are counted together.
    replans : tuple of Replan
        The plans that replaced earlier ones.
    persistent_nbytes : int
        The bytes of persistent arrays.
    """

    passes: int
    slab_nbytes: int
    bound_nbytes: int
    hits: int
    misses: int
    escapes: int
    persistent_nbytes: int
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    replans: tuple[Replan, ...] = ()

    @property
    def ratio(self) -> float:
        """Return the bytes of the slabs divided by the bound; 1.0 if nothing is planned."""
        return self.slab_nbytes / self.bound_nbytes if self.bound_nbytes else 1.0

    def __str__(self) -> str:
        lines = [
            f"{self.passes} passes: {self.hits} births from the slab, {self.misses} missed, {self.escapes} escapes",
            f"slab {bytes_text(self.slab_nbytes)}, {self.ratio:.3f} of the bound {bytes_text(self.bound_nbytes)}",
        ]
        if self.persistent_nbytes:
            lines.append(f"persistent arrays {bytes_text(self.persistent_nbytes)}")
        most = sorted(self.reasons.items(), key=lambda item: -item[1])
        lines += [f"missed {times(count)}: {reason}" for reason, count in most[:_REASONS_SHOWN]]
        if most[_REASONS_SHOWN:]:
            rest = sum(count for _, count in most[_REASONS_SHOWN:])
            lines.append(f"missed {times(rest)}: {len(most) - _REASONS_SHOWN} reasons more")
        lines += [f"planned anew after pass {replan.number}: {replan.reason}" for replan in self.replans]
        return "\n".join(lines)


@final
@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of a pass.

    Attributes
    ----------
    key : object
        The key of the pass.
    nbytes : int
        The most bytes in use at once of what was born in the pass, plus the persistent arrays.
    line : str
        The line of the birth that reached the peak.
    living : tuple of LinePeak
        What lived at the peak, by line, the most bytes first.
    advice : tuple of Advice
        What would lower the peak, the most effective first.
    """

    key: object
    nbytes: int
    line: str
    living: tuple[LinePeak, ...]
    advice: tuple[Advice, ...]

    def __str__(self) -> str:
        of = "" if self.key is None else f" of passes with key {self.key!r}:"
        return "\n".join(peak_lines(f"{of} {bytes_text(self.nbytes)}", self.line, self.living, self.advice))
