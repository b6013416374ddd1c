"""A report: the leaks, worst first, and what else is known of the run that they were found in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ._facts import Process, ProgramFacts, Settings, this_process, this_program
from ._leak import Leak
from ._live import LiveSite
from ._timeline import Timeline
from .reporters._text import text_of

__all__ = ["Report", "Suppressed", "UnusedSuppression"]


@final
@dataclass(frozen=True, slots=True)
class Suppressed:
    """A leak that the user does not want to hear of, and why.

    Attributes
    ----------
    leak : Leak
        What would have been reported.
    reason : str
        The reason that was given for it.
    """

    leak: Leak
    reason: str


@final
@dataclass(frozen=True, slots=True)
class UnusedSuppression:
    """A suppression that no leak needed.

    Attributes
    ----------
    file : str
        The file that it stands in.
    index : int
        Its place among the suppressions of the file, from 0.
    reason : str
        The reason that was given for it.
    """

    file: str
    index: int
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What leaked. ``str()`` of it is its text.

    Attributes
    ----------
    program : ProgramFacts
        What was run.
    settings : Settings
        What the detector was asked for.
    count : int
        How many resources leaked.
    nbytes : int
        The bytes that they pin, each storage once.
    leaks : tuple of Leak
        The leaks, those of the most bytes first.
    kept : tuple of Leak
        What is alive because variables of the program lead to it, and shows no sign of a leak.
    leftovers : tuple of Leak
        What was disposed, or has escaped, and is only named by a left-over variable. It is no leak.
    suppressed : tuple of Suppressed
        The leaks that were not to be reported.
    unused_suppressions : tuple of UnusedSuppression
        The suppressions that matched nothing.
    sites : tuple of LiveSite
        What is live, leak or not, the most bytes first.
    timeline : Timeline
        The course of the run.
    processes : tuple of Process
        The processes that the report is of.
    """

    program: ProgramFacts = field(default_factory=this_program)
    settings: Settings = field(default_factory=Settings)
    count: int = 0
    nbytes: int = 0
    leaks: tuple[Leak, ...] = ()
    kept: tuple[Leak, ...] = ()
    leftovers: tuple[Leak, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    unused_suppressions: tuple[UnusedSuppression, ...] = ()
    sites: tuple[LiveSite, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)
    processes: tuple[Process, ...] = field(default_factory=lambda: (this_process(),))

    def __str__(self) -> str:
        return text_of(self)
