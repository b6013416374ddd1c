"""The timeline of a run: its memory, passes and scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

__all__ = [
    "AT_MOST",
    "HANDED_OVER",
    "STEP",
    "UNASKED",
    "Band",
    "Pass",
    "Sample",
    "Timeline",
]

AT_MOST: Final = 2_000
"""So many samples, passes and scopes a timeline has at most, each."""
STEP: Final = "optimizer step"
"""The name of passes that end with each step of an optimizer."""
HANDED_OVER: Final = "handed over to the parent"
"""The name of passes of a worker process that end when it hands something over to its parent."""
UNASKED: Final = (STEP, HANDED_OVER)
"""The names of passes that the program does not mark: they count where it marks none."""


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at one moment.

    Attributes
    ----------
    t_s : float
        Seconds since the start of the run.
    rss_nbytes : int
        The resident memory of the process.
    live_nbytes : mapping of str to int
        The live bytes of tracked storages on each device.
    cached_nbytes : int
        The bytes that allocators of NumPy, PyTorch and the C library keep for reuse.
    pid : int or None
        The process; None if the report is of one only.
    anonymous_nbytes : int or None
        The memory of the process that no file backs, resident or swapped out: what Python objects,
        arrays and native code allocate. None where the system does not report it.
    """

    t_s: float
    rss_nbytes: int
    live_nbytes: Mapping[str, int] = field(hash=False)
    cached_nbytes: int
    pid: int | None = None
    anonymous_nbytes: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Pass:
    """The end of a pass of a loop.

    Attributes
    ----------
    t_s : float
        Seconds since the start of the run.
    index : int
        The number of the pass among the passes of its name, from 1.
    name : str
        The name of the scope that was closed, or what was given to ``mark()``.
    pid : int or None
        The process; None if the report is of one only.
    """

    t_s: float
    index: int
    name: str
    pid: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Band:
    """The life of a scope.

    Attributes
    ----------
    name : str
        The name of the scope; ``""`` if it has none.
    from_s : float
        When it was entered, in seconds since the start of the run.
    to_s : float or None
        When it was closed; None if it was open at the end.
    depth : int
        The number of scopes that were open around it.
    thread : str
        The name of the thread.
    pid : int or None
        The process; None if the report is of one only.
    """

    name: str
    from_s: float
    to_s: float | None
    depth: int
    thread: str
    pid: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Timeline:
    """A run over time. Of more than 2,000 samples, passes or scopes, some are left out evenly."""

    samples: tuple[Sample, ...] = ()
    passes: tuple[Pass, ...] = ()
    bands: tuple[Band, ...] = ()
