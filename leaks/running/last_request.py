"""Ask the processes that a program has started for their reports, when its code has returned.

A loader with persistent workers, and a pool, kill their processes when the interpreter ends. These
processes never come to the end of their code, and the reports that they wrote while they ran are
those of a short search. So they are asked for a last report before. No signal is sent, because a
program may have a handler of its own for each. Instead a process looks now and then for a file in
the folder of its session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from ..detector.recording import Ticker
from ..report.report import Report
from ..saved.files import asked_report, is_running, write_report

__all__ = [
    "Answers",
    "LastRequest",
]

_REQUEST: Final = "last-request"
"""The name of the file that is the request."""
_ANSWERS: Final = "answers-"
"""How the names of files begin by which processes announce that they answer; their id follows."""
_LOOK_EVERY_S: Final = 0.2
"""A process looks for the request after so many seconds."""
_WAIT_AT_MOST_S: Final = 5.0
"""The program waits so many seconds for answers: it ends later by as much."""


@final
class Answers:
    """Answers the last request to this process, on a thread of its own.

    Parameters
    ----------
    folder : Path
        The folder of the session.
    report : callable
        Makes the report of this process.
    """

    __slots__ = ("_announced", "_folder", "_is_done", "_report", "_ticker")

    def __init__(self, folder: Path, report: Callable[[], Report]) -> None:
        self._folder = folder
        self._report = report
        self._announced = folder / f"{_ANSWERS}{os.getpid()}"
        self._is_done = False
        self._ticker = Ticker(self._look, _LOOK_EVERY_S)

    def start(self) -> None:
        """Answer from now on."""
        self._ticker.start()
        with suppress(FileNotFoundError):
            self._announced.touch()

    def stop(self) -> None:
        """Answer no more: the process ends, and writes its report."""
        self._ticker.stop()
        self._announced.unlink(missing_ok=True)

    def _look(self) -> None:
        if not self._is_done and (self._folder / _REQUEST).exists():
            self._is_done = True
            with suppress(FileNotFoundError):
                write_report(self._report(), asked_report(self._folder, os.getpid()))


@final
class LastRequest:
    """The request for the reports of all processes of a session, made at once.

    Parameters
    ----------
    folder : Path
        The folder of the session.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / _REQUEST).touch()

    def wait(self) -> None:
        """Wait at most five seconds for answers; where one is missing, the last report counts."""
        deadline = time.monotonic() + _WAIT_AT_MOST_S
        while any(map(self._is_awaited, self._folder.glob(f"{_ANSWERS}*"))) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S / 10)

    def _is_awaited(self, announced: Path) -> bool:
        pid = int(announced.name.removeprefix(_ANSWERS))
        return is_running(pid) and not asked_report(self._folder, pid).exists()
