"""What a workspace says of itself: its figures and its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from ..leaks.report.peak import Advice, LinePeak, peak_lines
from ..scopes.base.process import bytes_text

__all__ = ["Peak", "Replan", "WorkspaceStatistics"]


_REASONS_SHOWN: Final = 20


@final
@dataclass(frozen=True, slots=True)
class Replan:
    """A plan that was made after the first one.

    Attributes
    ----------
    number : int
        The number of the pass after which it was made, from 1 on.
    key : object
        The key of that pass.
    reason : str
        What did not fit, with its line.
    line : str
        That line: ``"train.py:41"``.
    """

    number: int
    key: object
    reason: str
    line: str


@final
@dataclass(frozen=True, slots=True)
class WorkspaceStatistics:
    """The figures of a workspace, of all its threads together.

    Attributes
    ----------
    passes : int
        Passes that have ended.
    slab_nbytes : int
        The bytes of its slabs.
    bound_nbytes : int
        The most bytes that what is planned has in use at once, in the largest of its plans: no slab
        can be smaller. With several threads, the sum over their slabs.
    hits, misses : int
        Births that the slab served, and births that it should have served.
    escapes : int
        Blocks that outlived their pass.
    reasons : mapping of str to int
        Why births were missed, with the line, and how often; of more than 500 reasons the later
        ones together.
    replans : tuple of Replan
        The plans that were made after the first of each key.
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
        """Return the bytes of the slabs over the bound; 1.0 where nothing is planned."""
        return self.slab_nbytes / self.bound_nbytes if self.bound_nbytes else 1.0

    def __str__(self) -> str:
        lines = [
            f"{self.passes} passes: {self.hits} births from the slab, {self.misses} missed, {self.escapes} escapes",
            f"slab {bytes_text(self.slab_nbytes)}, {self.ratio:.3f} of the bound {bytes_text(self.bound_nbytes)}",
        ]
        if self.persistent_nbytes:
            lines.append(f"persistent arrays {bytes_text(self.persistent_nbytes)}")
        most = sorted(self.reasons.items(), key=lambda item: -item[1])
        lines += [f"missed {count} times: {reason}" for reason, count in most[:_REASONS_SHOWN]]
        if most[_REASONS_SHOWN:]:
            rest = sum(count for _, count in most[_REASONS_SHOWN:])
            lines.append(f"missed {rest} times: {len(most) - _REASONS_SHOWN} reasons more")
        lines += [f"planned anew after pass {one.number}: {one.reason}" for one in self.replans]
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
        The most bytes that what was born in the pass had in use at once, with the persistent
        arrays.
    line : str
        The line of the birth at which that was.
    living : tuple of LinePeak
        What lived then, by line, the largest sum first.
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
