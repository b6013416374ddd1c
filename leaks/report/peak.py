"""The peak of memory: what lives there, by line, and what would lower it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from ...scopes.base.process import bytes_text

__all__ = [
    "Advice",
    "Life",
    "LinePeak",
    "ProgramPeak",
    "peak_lines",
]

_ROWS: Final = 10


@final
@dataclass(frozen=True, slots=True)
class LinePeak:
    """What was born at one line and lives at the peak.

    Attributes
    ----------
    line : str
        The line.
    nbytes, count : int
        Bytes and number.
    """

    line: str
    nbytes: int
    count: int

    def __str__(self) -> str:
        return f"{bytes_text(self.nbytes):>10} in {self.count} at {self.line}"


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
        What it would be.
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
        When it was born and when it was dead, in births since the pass began; cut at the ends of
        the pass.
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
        The most bytes that what was born in the program had in use at once.
    line : str
        The line of the birth at which that was.
    living : tuple of LinePeak
        What lived then, by line, the largest sum first.
    advice : tuple of Advice
        What would lower the peak, the most effective first.
    births : int
        How many births were recorded.
    is_whole : bool
        Whether that was all of them: otherwise the first ones.
    pass_name : str or None
        The name of the pass in which the peak was; None where it was in no pass of a loop.
    pass_index : int
        Its number among the passes of that name, from 1; 0 for no pass.
    course : tuple of (int, int)
        The bytes in use during that pass, or during the whole recording: births since its
        beginning, and the most bytes there, in a few hundred steps.
    lives : tuple of Life
        The largest blocks of that pass, in the order of their births.
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
    """Return the lines of a peak's text: where it is, what lives there, and what would lower it.

    Of the last two, at most `at_most` rows each are shown, or all where it is None.
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
