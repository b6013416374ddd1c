"""The peak of a whole program: its births are recorded while it runs unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.framework import FRAMEWORKS, Framework, LifeRecording
from ..report.peak import Life, ProgramPeak
from .advice import advise
from .recording import Birth, Recording, Service, line_text, living_rows

__all__ = ["LifeRecorder"]

_BIRTHS_AT_MOST: Final = 1 << 20
_STEPS: Final = 400
_LIVES: Final = 150


@final
class LifeRecorder:
    """Records what a program makes, on all threads, from `start` until `stop`.

    Memory that a library notes for the threads that ask, such as PyTorch's, is recorded on the
    thread that has called `start`.
    """

    def __init__(self, most_births: int = _BIRTHS_AT_MOST) -> None:
        self._most: Final = most_births
        self._recording: LifeRecording | None = None
        self._noted: list[Framework] = []
        self._stops: list[Callable[[], object]] = []
        self._thread = 0
        self._ends: dict[str, list[int]] = {}
        self._births: list[Birth] = []
        self._found: ProgramPeak | None = None

    def start(self) -> None:
        """Record from now on. A detector is open."""
        for framework in FRAMEWORKS.with_own("record_lives"):
            self._recording = framework.record_lives(self._most)
        self._thread = threading.get_ident()
        self._note()
        # The program may import further libraries.
        FRAMEWORKS.after_install(self._note)

    def passed(self, name: str, index: int) -> None:
        """Record the end of a pass."""
        if self._recording is not None:
            self._ends.setdefault(name, []).append(self._recording.time)

    def forget(self) -> None:
        """Record nothing any more, in a forked process: what there is belongs to the parent."""
        if self._recording is not None:
            self._stop_noting()
            self._recording.end()
            self._recording = None
        self._births = []
        self._found = None

    def stop(self) -> None:
        """Record no more."""
        if self._recording is None:
            return
        self._stop_noting()
        self._recording.end()
        rows, self._recording = self._recording.births(), None
        self._births = [
            Birth(nbytes, None if died < 0 else died, Service(outcome), None, places)
            for nbytes, died, outcome, _, places in rows
        ]

    def peak(self) -> ProgramPeak | None:
        """Return the peak, after `stop`; None where nothing was born.

        What this makes is born after the program: a report is made before.
        """
        if self._births:
            self._found = self._peak_of(Recording(self._births))
            self._births = []
        return self._found

    def _stop_noting(self) -> None:
        while self._stops and threading.get_ident() == self._thread:
            self._stops.pop()()

    def _note(self) -> None:
        if self._recording is None or threading.get_ident() != self._thread:
            return
        for framework in FRAMEWORKS.with_own("note_lives"):
            if framework not in self._noted:
                self._noted.append(framework)
                stop = framework.note_lives(self._recording)
                if stop is not None:
                    self._stops.append(stop)

    def _peak_of(self, recording: Recording) -> ProgramPeak | None:
        time, nbytes = recording.peak()
        if not nbytes:
            return None
        count = len(recording.births)
        name, index, begin, end = self._pass_at(time, count)
        return ProgramPeak(
            nbytes=nbytes,
            line=line_text(recording.births[time]),
            living=living_rows(recording, time),
            advice=advise(recording),
            births=count,
            is_whole=count < self._most,
            pass_name=name,
            pass_index=index,
            course=_course(recording.live_nbytes(), begin, end),
            lives=_lives(recording, time, begin, end),
        )

    def _pass_at(self, time: int, count: int) -> tuple[str | None, int, int, int]:
        """Return the shortest pass that has the peak: its name, number, beginning and end."""
        found: tuple[str | None, int, int, int] = (None, 0, 0, count)
        for name, ends in self._ends.items():
            for index, (begin, end) in enumerate(pairwise([0, *ends]), 1):
                if begin <= time < end < found[3] - found[2] + begin:
                    found = name, index, begin, end
        return found


def _course(live: NDArray[np.int64], begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the most bytes in each of a few hundred steps between two times."""
    cuts = np.unique(np.linspace(begin, end, min(_STEPS, end - begin) + 1, dtype=np.int64))[:-1]
    most = np.maximum.reduceat(live[:end], cuts)
    return tuple(zip((cuts - begin).tolist(), most.tolist(), strict=True))


def _lives(recording: Recording, time: int, begin: int, end: int) -> tuple[Life, ...]:
    """Return the largest blocks that live between two times, in the order of their births."""
    lower, upper, sizes = recording.lower, recording.upper, recording.sizes
    there = np.flatnonzero((lower < end) & (upper > begin) & (sizes > 0))
    largest: list[int] = np.sort(there[np.argsort(-sizes[there], kind="stable")[:_LIVES]]).tolist()
    return tuple(
        Life(
            line_text(recording.births[number]),
            int(sizes[number]),
            max(int(lower[number]), begin) - begin,
            min(int(upper[number]), end) - begin,
            bool(lower[number] <= time < upper[number]),
        )
        for number in largest
    )
