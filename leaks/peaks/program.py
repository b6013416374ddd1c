"""The peak of a whole program, whose births are recorded while it runs unchanged.

A pass of a workspace records its births itself: they are not in the recording of the program. Where
such a pass may have the peak, `LifeRecorder.peak` returns None, and `LifeRecorder.why_none` names
the workspace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.base.process import bytes_text
from ...scopes.framework import FRAMEWORKS, Framework, LifeRecording
from ..report.peak import Life, ProgramPeak
from .advice import advise
from .recording import Birth, Recording, ServedBy, line_text, living_rows

__all__ = ["LifeRecorder", "pass_of_workspace"]

_BIRTHS_AT_MOST: Final = 1 << 20
"""So many births are recorded; the peak is then said to be of this part of the program."""
_COURSE_STEPS: Final = 400
"""So many steps has the drawn course of the live bytes."""
_LIVES_SHOWN: Final = 150
"""So many blocks, the largest ones, are drawn."""


@final
class LifeRecorder:
    """Records what a program makes, on all threads, from `start` until `stop`.

    Memory of PyTorch is recorded only on the thread that has called `start`: a library notes its
    memory for the threads that ask (`Framework.note_lives`).
    """

    def __init__(self, most_births: int = _BIRTHS_AT_MOST) -> None:
        self._most: Final = most_births
        self._recording: LifeRecording | None = None
        self._noted: list[Framework] = []
        self._stops: list[Callable[[], object]] = []
        self._thread = 0
        # For each name of passes, the times at which they ended.
        self._ends: dict[str, list[int]] = {}
        self._births: list[Birth] = []
        self._found: ProgramPeak | None = None
        # The most bytes in a pass of a workspace, by the name of the workspace and the time at
        # which the pass ended.
        self._in_workspaces: dict[tuple[str, int], int] = {}
        # The workspace that may have the peak, and the most bytes in its passes.
        self._peak_workspace: tuple[str, int] | None = None

    def start(self) -> None:
        """Record from now on. A detector must be open."""
        for framework in FRAMEWORKS.with_own("record_lives"):
            self._recording = framework.record_lives(self._most)
        self._thread = threading.get_ident()
        _RUNNING.recorder = self
        self._note()
        # The program may import further libraries.
        FRAMEWORKS.after_install(self._note)

    def passed(self, name: str, index: int) -> None:
        """Record the end of a pass."""
        if self._recording is not None:
            self._ends.setdefault(name, []).append(self._recording.time)

    def passed_in_workspace(self, name: str, nbytes: int) -> None:
        """Record that a pass of a workspace has ended, and the most bytes that it had."""
        if self._recording is not None:
            key = name, self._recording.time
            self._in_workspaces[key] = max(nbytes, self._in_workspaces.get(key, 0))

    def forget(self) -> None:
        """End the recording and forget it, in a forked process: it is the parent's."""
        if self._recording is not None:
            self._stop_noting()
            self._recording.end()
            self._recording = None
            self._leave()
        self._births = []
        self._in_workspaces = {}
        self._found = None

    def stop(self) -> None:
        """Record no more."""
        if self._recording is None:
            return
        self._stop_noting()
        self._recording.end()
        rows, self._recording = self._recording.births(), None
        self._leave()
        self._births = [
            Birth(nbytes, None if died < 0 else died, ServedBy(outcome), None, places)
            for nbytes, died, outcome, _, places in rows
        ]

    def peak(self) -> ProgramPeak | None:
        """Return the peak, after `stop`; None where nothing was born, or a workspace may have it.

        Call it after the report was made: it makes arrays, which the report would count.
        """
        recording, self._births = Recording(self._births), []
        self._peak_workspace = self._peak_workspace or self._peak_in_workspaces(recording)
        if recording.births and self._peak_workspace is None:
            self._found = self._peak_of(recording)
        return self._found

    def why_none(self) -> str | None:
        """Return why `peak` returned None; None where it returned a peak."""
        if self._found is not None:
            return None
        if self._peak_workspace is None:
            return "no memory of NumPy or PyTorch was born while the program was recorded"
        name, nbytes = self._peak_workspace
        return (
            f"it may be in the passes of workspace {name!r}, which record their own memory, {bytes_text(nbytes)} "
            "at most: peak() of the workspace says what lives there"
        )

    def _peak_in_workspaces(self, recording: Recording) -> tuple[str, int] | None:
        """Return the workspace with the most bytes in a pass, and these bytes.

        None where no workspace, with what the program had beside it, reaches the recorded peak.
        """
        live = recording.live_nbytes()
        _, peak_nbytes = recording.peak()
        with_program = [
            (int(live[min(time, len(live)) - 1]) if time and len(live) else 0) + nbytes
            for (_, time), nbytes in self._in_workspaces.items()
        ]
        most = max(self._in_workspaces.items(), key=lambda item: item[1], default=None)
        self._in_workspaces = {}
        if most is None or max(with_program) <= peak_nbytes:
            return None
        (name, _), nbytes = most
        return name, nbytes

    def _leave(self) -> None:
        if _RUNNING.recorder is self:
            _RUNNING.recorder = None

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
        """Return the shortest pass that has the peak: its name, number, beginning and end.

        Without such a pass: None, 0, and the beginning and end of the recording.
        """
        found: tuple[str | None, int, int, int] = (None, 0, 0, count)
        shortest = count
        for name, ends in self._ends.items():
            for index, (begin, end) in enumerate(pairwise([0, *ends]), 1):
                if begin <= time < end < shortest + begin:
                    found = name, index, begin, end
                    shortest = end - begin
        return found


@final
class _Running:
    """The recorder that is recording."""

    def __init__(self) -> None:
        self.recorder: LifeRecorder | None = None


_RUNNING: Final = _Running()


def pass_of_workspace(name: str, nbytes: int) -> None:
    """Give the most bytes in a pass of a workspace to the recorder of the program, if one runs."""
    recorder = _RUNNING.recorder
    if recorder is not None:
        recorder.passed_in_workspace(name, nbytes)


def _course(live: NDArray[np.int64], begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the most bytes in each of a few hundred steps between two times."""
    cuts = np.unique(np.linspace(begin, end, min(_COURSE_STEPS, end - begin) + 1, dtype=np.int64))[:-1]
    most = np.maximum.reduceat(live[:end], cuts)
    return tuple(zip((cuts - begin).tolist(), most.tolist(), strict=True))


def _lives(recording: Recording, time: int, begin: int, end: int) -> tuple[Life, ...]:
    """Return the largest blocks that live between two times, in the order of their births."""
    lower, upper, sizes = recording.lower, recording.upper, recording.sizes
    there = np.flatnonzero((lower < end) & (upper > begin) & (sizes > 0))
    largest: list[int] = np.sort(there[np.argsort(-sizes[there], kind="stable")[:_LIVES_SHOWN]]).tolist()
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
