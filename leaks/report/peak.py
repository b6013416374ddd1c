"""The peak of memory: the memory that lives at it, by line, and what would lower it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from ...scopes.base.process import bytes_text

__all__ = [
    "PERSISTENT_ARRAYS",
    "Advice",
    "Life",
    "LinePeak",
    "ProgramPeak",
    "peak_lines",
]

PERSISTENT_ARRAYS: Final = "persistent arrays"
"""What stands for the line of the arrays that live over the passes of a workspace."""
_ROWS: Final = 10
"""So many lines, and so many pieces of advice, are shown."""


@final
@dataclass(frozen=True, slots=True)
class LinePeak:
    """The memory that was born at one line and lives at the peak.

    Attributes
    ----------
    line : str
        The line; for arrays that live over the passes of a workspace, "persistent arrays".
    nbytes, count : int
        The bytes, and the number of births.
    """

    line: str
    nbytes: int
    count: int

    def __str__(self) -> str:
        what = f"{bytes_text(self.nbytes):>10} in {self.count}"
        if self.line == PERSISTENT_ARRAYS:
            return f"{what} persistent array{'s' * (self.count != 1)}"
        return f"{what} at {self.line}"


@final
@dataclass(frozen=True, slots=True)
class Advice:
    """A change of the program that would lower the peak.

    Attributes
    ----------
    text : str
        What to do, and at which line.
    saved_nbytes : int
        By how much the peak would be lower.
    peak_nbytes : int
        The bytes of the peak then.
    """

    text: str
    saved_nbytes: int
    peak_nbytes: int

    def __str__(self) -> str:
        return f"{self.text}: {bytes_text(self.saved_nbytes)} less, peak {bytes_text(self.peak_nbytes)}"


@final
@dataclass(frozen=True, slots=True)
class Life:
    """A block of memory in the pass of the peak.

    Attributes
    ----------
    line : str
        The line where it was born.
    nbytes : int
        Its bytes.
    lower, upper : int
        When it was born, and the first time it was dead: births since the pass began, not before
        the beginning nor after the end of the pass.
    at_peak : bool
        Whether it lives at the peak.
    """

    line: str
    nbytes: int
    lower: int
    upper: int
    at_peak: bool


@final
@dataclass(frozen=True, slots=True)
class ProgramPeak:
    """The peak of the memory of a whole program, as far as it was recorded.

    Attributes
    ----------
    nbytes : int
        The most bytes that were live at once.
    line : str
        The line of the birth that reached the peak.
    living : tuple of LinePeak
        The memory that lived then, by line, the most bytes first.
    advice : tuple of Advice
        What would lower the peak, the most effective first.
    births : int
        How many births were recorded.
    is_whole : bool
        Whether all births were recorded; otherwise only the first ones were.
    pass_name : str or None
        The name of the pass with the peak; None where it was in no pass of a loop.
    pass_index : int
        The number of that pass among the passes of its name, from 1; 0 for no pass.
    course : tuple of (int, int)
        The live bytes during that pass, or during the whole recording, in a few hundred steps: for
        each the births since the beginning, and the most live bytes.
    lives : tuple of Life
        The largest blocks of that pass, or of the whole recording, in the order of their births.
    """

    nbytes: int
    line: str
    living: tuple[LinePeak, ...]
    advice: tuple[Advice, ...]
    births: int
    is_whole: bool
    pass_name: str | None
    pass_index: int
    course: tuple[tuple[int, int], ...]
    lives: tuple[Life, ...]

    def __str__(self) -> str:
        of = "" if self.is_whole else f" of the first {self.births:,} births"
        where = "" if self.pass_name is None else f" in pass {self.pass_index} of {self.pass_name}"
        return "\n".join(
            peak_lines(f"{of} {bytes_text(self.nbytes)}", self.line + where, self.living, self.advice, _ROWS)
        )


def peak_lines(
    what: str, line: str, living: Sequence[LinePeak], advice: Sequence[Advice], at_most: int | None = None
) -> list[str]:
    """Return the text of a peak: where it is, what lives there, and what would lower it.

    At most `at_most` lines and pieces of advice are shown; all where it is None.
    """
    if not living:
        return [f"peak{what}: nothing was born"]
    lines = [f"peak{what} at {line}; there live", *(f"  {row}" for row in living[:at_most])]
    rest = living[len(living[:at_most]) :]
    if rest:
        lines.append(f"  {bytes_text(sum(row.nbytes for row in rest)):>10} at {len(rest):,} more lines")
    if advice:
        lines += ["what would lower it:", *(f"  {each}" for each in advice[:at_most])]
    return lines
