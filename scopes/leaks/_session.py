"""A program that is watched from outside: its detector, the file of its report, and the processes that it starts.

A report is known at any moment: it is written now and then while the program runs, when it ends in whichever way Python
notices, and by each process that it forks or that `multiprocessing` starts for it. What a process wrote last is what
is known of it if it is killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast, final

from ._attaching import PREFIX, requested_output, say_watched
from ._detector import LeakDetector
from ._facts import Ending, Settings
from ._handovers import count_handovers
from ._merging import merged
from ._report import Report
from ._report_files import reports_in, write_report
from ._report_parts import above, of_kinds, of_worker
from ._signal import SignalAnswer
from ._suppressions import Suppression, suppressed_by
from ._ticker import Ticker

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Session", "in_session"]

_INTERVAL_S: Final = 2.0
_SAMPLES_EVERY_S: Final = 0.05


@final
class Session:
    """A process while it is watched: the one that was asked for, or one that it started.

    Parameters
    ----------
    argv : tuple of str
        The program and its arguments.
    module : bool
        Whether it was named as a module.
    settings : Settings
        What is asked of the detector.
    output : Path, optional
        Where the report goes.
    at_exit : callable, optional
        Called with the report where the program ends itself by ``os._exit``, before it does.
    suppressions : tuple of Suppression
        What is not to be reported.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        module: bool,
        settings: Settings,
        output: Path | None,
        at_exit: Callable[[Report], object] | None = None,
        suppressions: tuple[Suppression, ...] = (),
    ) -> None:
        self.argv = argv
        self.module = module
        self.settings = settings
        self.output = output
        self.detector = _detector_of(settings)
        self.is_worker = False
        self._at_exit = at_exit
        self._suppressions = suppressions
        self._folder: Path | None = None
        self._parent: int | None = None
        self._ticker: Ticker | None = None
        self._is_over = False
        self._answer = SignalAnswer(self._report_now)

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        _SESSIONS.append(self)
        _watch_endings()
        self.detector.__enter__()
        self._answer.install()
        self._begin()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._end()
        self._answer.remove()
        self.detector.__exit__(exc_type, exc, traceback)
        _SESSIONS.remove(self)
        if not self.is_worker and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def report(self, ended: Ending, status: int | None, time_limit_s: float | None = None) -> Report:
        """What is known now, with what the processes that were started have written.

        Parameters
        ----------
        ended : str
            How the program ended; ``"running"`` while it runs.
        status : int or None
            Its exit status.
        time_limit_s : float, optional
            How long holders are searched for; as the settings say where left out.
        """
        if time_limit_s is None:
            time_limit_s = self.settings.time_limit_s
        own = of_kinds(self.detector.report(time_limit_s=time_limit_s, of_program=True), self.settings.kinds)
        [process] = own.processes
        process = replace(
            process, parent=self._parent, role="worker" if self.is_worker else "main", ended=ended, status=status
        )
        own = replace(
            own,
            program=replace(own.program, argv=self.argv, module=self.module, status=status, ended=ended),
            settings=replace(self.settings, time_limit_s=time_limit_s),
            processes=(process,),
        )
        if self.is_worker:
            return replace(own, leaks=tuple(of_worker(leak) for leak in own.leaks))
        whole = suppressed_by(merged([own, *reports_in(self._folder)]), self._suppressions)
        return above(whole, self.settings.threshold_nbytes)

    def finish(self, ended: Ending, status: int | None) -> Report:
        """The last report, written where it goes. The first call makes it; a later one finds it made."""
        self._end()
        report = self.report(ended, status)
        self._is_over = True
        if self.output is not None:
            write_report(report, self.output)
        return report

    # ------------------------------------------------------------------ the processes

    def become_worker(self, folder: Path | None = None) -> None:
        """Go on as a process of its own, forked or started, that leaves its report to its parent."""
        folder = self._folder if folder is None else folder
        assert folder is not None
        self._folder = folder
        self.is_worker = True
        self._is_over = False
        self._parent = os.getppid()
        self.output = folder / f"{os.getpid()}.json"
        self._at_exit = None
        self._ticker = None
        count_handovers()

    def go_on_in_child(self) -> None:
        """The same, in a process that was forked: what the parent knows is the parent's to tell."""
        self.become_worker()
        self.detector.__exit__(None, None, None)
        self.detector = _detector_of(self.settings)
        self.detector.__enter__()
        self._begin()

    def seed(self) -> tuple[str, Settings]:
        """What a process that is started anew has to be told."""
        return str(self._folder), self.settings

    def ends_itself(self, status: int | None) -> None:
        """The process is about to end without Python noticing: write what is known."""
        if self._is_over:
            return
        report = self.finish("os._exit" if not self.is_worker else "exit", status)
        if self._at_exit is not None:
            self._at_exit(report)

    def _begin(self) -> None:
        if self._folder is not None and self._answer.is_installed:
            say_watched(self._folder)
        if self.output is not None and (self.is_worker or self.output.is_file() or not self.output.exists()):
            self._ticker = Ticker(self._write_what_is_known, _INTERVAL_S)
            self._ticker.start()

    def _end(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def _report_now(self) -> Report | None:
        output = None if self._folder is None else requested_output(self._folder)
        report = self.report("running", None)
        if output is None:
            return report
        write_report(report, output)
        return None

    def _write_what_is_known(self) -> None:
        assert self.output is not None
        # Beside the program, which goes on meanwhile: no search for holders.
        write_report(self.report("running", None, time_limit_s=0.0), self.output)


def _detector_of(settings: Settings) -> LeakDetector:
    return LeakDetector(frames=settings.frames, sample_nbytes=settings.sample_nbytes, timeline_s=_SAMPLES_EVERY_S)


# ---------------------------------------------------------------------- the endings and beginnings of processes

_SESSIONS: Final[list[Session]] = []
"""The session of this process; empty where none is open."""


def in_session() -> bool:
    """Whether this process is watched from outside."""
    return bool(_SESSIONS)


_spawn: Final = cast("Any", spawn)
_watched: Final[list[bool]] = []


def _watch_endings() -> None:
    """Hear of forks, of processes that `multiprocessing` starts, and of ``os._exit``. Once in a process."""
    if _watched:
        return
    _watched.append(True)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    leave = os._exit
    prepare = _spawn.get_preparation_data

    def _exit(status: int) -> NoReturn:
        for session in _SESSIONS[:]:
            try:
                session.ends_itself(status)
            except Exception as error:
                # The process ends all the same, and as it wanted to.
                with suppress(OSError, ValueError):
                    print(f"leak-report: the report could not be written: {error}", file=sys.stderr, flush=True)
        leave(status)

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = dict(prepare(name))
        if _SESSIONS:
            # What starts a process takes no notice of other entries than its own; this one is at work when it is read.
            data["disposescope"] = _Seed(*_SESSIONS[-1].seed())
        return data

    os._exit = _exit
    _spawn.get_preparation_data = get_preparation_data


def _forked() -> None:
    for session in _SESSIONS:
        session.go_on_in_child()


class _Seed:
    """Goes to a process that is started anew, and opens a session in it as soon as it arrives."""

    def __init__(self, folder: str, settings: Settings) -> None:
        self._of_session = folder, settings

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_in_worker, self._of_session


def _open_in_worker(folder: str, settings: Settings) -> None:
    if _SESSIONS:
        return
    session = Session(tuple(sys.argv), False, settings, None)
    session.become_worker(Path(folder))
    session.__enter__()
    atexit.register(session.ends_itself, None)
