"""A watched program: its detector, its report file, its processes, and requests from outside."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast, final

from ...scopes.base.process import PATCHES, TESTED_PYTHON, Patch, at_forks
from ..births.log import LOG, complete_log
from ..detector.detector import LeakDetector
from ..detector.own_pages import OwnPages
from ..detector.recording import Ticker
from ..detector.watching import count_handovers, look_at_passes
from ..report.report import (
    OBJECTS_WHILE_RUNNING,
    Ending,
    Report,
    Settings,
    above,
    of_kinds,
    of_worker,
    utc_of,
    with_freed,
)
from ..reporters.json_report import ReportFileError, report_from_json
from ..saved.files import merged, reports_in, write_report
from ..saved.settings_file import Suppression, suppressed_by
from .children import ChildProcesses, session_of, watch_children, without_report
from .inventory import AFTER_EXIT, AFTER_THREADS, Growing, Inventory, one_line
from .last_request import Answers, LastRequest
from .signals import ReportAtTermination, SignalAnswer

if TYPE_CHECKING:
    from types import TracebackType

    from ..peaks.program import LifeRecorder
    from ..report.peak import ProgramPeak

__all__ = [
    "AttachError",
    "Session",
    "ask",
    "in_session",
    "join",
]

# A watched program: its detector, its report file, and the processes that it starts.
#
# A report is written now and then while the program runs, and when it ends in any way that Python
# notices. Each process that the program forks, or starts by `multiprocessing`, does the same. If a
# process is killed, its last report counts. Processes started by `subprocess` join: see `children`.


_WITHOUT_END: Final[tuple[Ending, ...]] = ("running", "unfinished", "killed")
"""Endings of processes for which a report has no time of the end."""

_MAIN_THREAD_FIRST_S: Final = 0.05
"""A look from beside the main thread waits so many seconds, in which the main thread may look."""
_INTERVAL_S: Final = 2.0
"""A report is written after so many seconds while the program runs."""
_SAMPLES_EVERY_S: Final = 0.05
"""The timeline has a sample after so many seconds."""


@final
class Session:
    """A watched process: the main process of a program, or a process that it started.

    Parameters
    ----------
    argv : tuple of str
        The program and its arguments.
    module : bool
        Whether the program was named as a module.
    settings : Settings
        The settings of the detector.
    output : Path, optional
        The file of the report.
    at_exit : callable, optional
        Called with the last report before the program ends itself by ``os._exit``.
    suppressions : tuple of Suppression
        The suppressions.
    records_peak : bool, default False
        Whether the peak of memory of this process is recorded.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        module: bool,
        settings: Settings,
        output: Path | None,
        at_exit: Callable[[Report], object] | None = None,
        suppressions: tuple[Suppression, ...] = (),
        records_peak: bool = False,
    ) -> None:
        self.argv = argv
        self.module = module
        self.settings = settings
        self.output = output
        self.detector = _detector_of(settings)
        self.is_worker = False
        self._at_exit = at_exit
        self._suppressions = suppressions
        self._lives = _life_recorder() if records_peak else None
        self._folder: Path | None = None
        self._parent: int | None = None
        # When a worker began: if it was forked, this module was loaded earlier, by its parent.
        self._began_at: str | None = None
        # Whether this process runs a program of its own. A forked worker does not.
        self._is_program = True
        self._children: ChildProcesses | None = None
        self._ticker: Ticker | None = None
        self._answers: Answers | None = None
        self._is_over = False
        self._inventory: Inventory | None = None
        # What could not be seen because of errors of this package.
        self._failures: list[str] = []
        self._growing = Growing(lambda: self._own_report("unfinished", OBJECTS_WHILE_RUNNING, is_look=True))
        self._stop_looking: Callable[[], None] | None = None
        self._own_pages: OwnPages | None = None
        self._answer = SignalAnswer(self._report_now)
        self._at_termination = ReportAtTermination(self._finish_terminated)

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._children = ChildProcesses(self._folder, self.settings)
        _SESSIONS.append(self)
        _watch_endings()
        watch_children(_children_now, _replaced)
        self.detector.__enter__()
        self._stop_looking = look_at_passes(self._passed)
        if self._lives is not None:
            self._lives.start()
        LOG.look_at_births(lambda has_more: self._growing.born(has_more=has_more))
        self._answer.install()
        if self._is_program:
            self._at_termination.install()
        self._begin()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._end()
        if self._stop_looking is not None:
            self._stop_looking()
            self._stop_looking = None
            LOG.look_at_births(None)
        self._answer.remove()
        self._at_termination.remove()
        self.detector.__exit__(exc_type, exc, traceback)
        _SESSIONS.remove(self)
        self.remove_folder()

    def report(
        self, ended: Ending, status: int | None, *, error: str | None = None, object_limit: int | None = None
    ) -> Report:
        """Return what is known now, with the reports of the processes that it started.

        Parameters
        ----------
        ended : str
            How the program ended; ``"unfinished"`` while it runs.
        status : int or None
            Its exit status.
        error : str, optional
            The exception that ended it.
        object_limit : int, optional
            How many objects the search for holders reaches at most; by default that of the
            settings.
        """
        if object_limit is None:
            object_limit = self.settings.object_limit
        return self._with_others(self._own_report(ended, object_limit), ended, status, error)

    def _passed(self, name: str, count: int) -> None:
        self._growing.passed(name, count)
        if self._lives is not None:
            self._lives.passed(name, count)
        if self._own_pages is not None:
            self._own_pages.passed(name, count)

    def _own_report(self, ended: Ending, object_limit: int, *, is_look: bool = False) -> Report:
        died = ended in ("exception", "interrupt")
        goes_on = ended == "unfinished"
        report = self.detector.report(
            object_limit=object_limit, of_program=True, died=died, goes_on=goes_on, is_look=is_look
        )
        if self._own_pages is not None:
            # For a forked process its own pages show native growth: see `own_pages`.
            others = tuple(leak for leak in report.leaks if leak.kind != "native")
            leaks = (*others, *self._own_pages.leaks())
            report = replace(
                report,
                leaks=leaks,
                count=report.count + len(leaks) - len(report.leaks),
                unwatched=(*report.unwatched, *self._own_pages.unwatched()),
            )
        report = replace(report, unwatched=(*report.unwatched, *self._growing.unwatched()))
        return replace(
            of_kinds(report, self.settings.kinds), settings=replace(self.settings, object_limit=object_limit)
        )

    def _with_others(self, own: Report, ended: Ending, status: int | None, error: str | None) -> Report:
        """Return the report of this process with the facts about its end.

        In the main process it is merged with the reports of the other processes.
        """
        [process] = own.processes
        process = replace(
            process,
            parent=self._parent,
            role="worker" if self.is_worker else "main",
            ended=ended,
            status=status,
            began_at=process.began_at if self._began_at is None else self._began_at,
            ended_at=None if ended in _WITHOUT_END else utc_of(time.time()),
        )
        own = replace(
            own,
            program=replace(own.program, argv=self.argv, module=self.module, status=status, ended=ended, error=error),
            processes=(process,),
            unwatched=(
                *own.unwatched,
                *self._failures,
                *([] if self._children is None else self._children.unwatched()),
            ),
        )
        if self.is_worker:
            return own if self._is_program else replace(own, leaks=tuple(of_worker(leak) for leak in own.leaks))
        others = reports_in(self._folder)
        if self._folder is not None:
            missed = without_report(self._folder, {report.program.pid for report in others})
            own = replace(own, unwatched=(*own.unwatched, *missed))
        whole = suppressed_by(merged([own, *others]), self._suppressions)
        return above(whole, self.settings.threshold_nbytes)

    def finish(self, ended: Ending, status: int | None, error: str | None = None) -> Report:
        """Write and return the last report."""
        self._end()
        own = Report(settings=self.settings)
        with self._going_on("what the program had in the end"):
            if self._inventory is None:
                own = self._with_freed(self._own_report(ended, self.settings.object_limit))
            else:
                own = self._inventory.report
                self._inventory.go_on(AFTER_EXIT)
                own = self._inventory.report
        peak, no_peak = self._peak()
        report = replace(self._with_others(own, ended, status, error), peak=peak, no_peak=no_peak)
        self._is_over = True
        self._write(report)
        return report

    def _peak(self) -> tuple[ProgramPeak | None, str | None]:
        """Return the peak of the program, and why there is none although it was asked for."""
        if self._lives is None:
            return None, None
        with self._going_on("the peak"):
            self._lives.stop()
            return self._lives.peak(), self._lives.why_none()
        return None, self._failures[-1]

    def take_inventory(self, ended: Ending) -> None:
        """Make the report that `finish` completes. Call it when the program's code has returned."""
        if self._lives is not None:
            with self._going_on("what lives at the peak"):
                self._lives.stop()
        request = None if self.is_worker or self._folder is None else LastRequest(self._folder)
        # A report that is being made on another thread refers to objects of the program, and would
        # look like a holder.
        with self._no_report_meanwhile(), self._going_on("what the program had when its code returned"):
            self._inventory = Inventory(lambda: self._with_freed(self._own_report(ended, self.settings.object_limit)))
        if request is not None:
            request.wait()

    @contextmanager
    def _no_report_meanwhile(self) -> Generator[None]:
        """Stop the reports that are written now and then, for a block."""
        ticker = self._ticker
        if ticker is not None:
            ticker.stop()
        try:
            yield
        finally:
            if ticker is not None and self._ticker is ticker:
                # Since Python 3.12 no thread can be started while the interpreter shuts down. The
                # last report follows anyway.
                with suppress(RuntimeError):
                    ticker.start()

    @contextmanager
    def _going_on(self, unseen: str) -> Generator[None]:
        """Have the program go on after an error of this package; the report says what is unseen."""
        try:
            yield
        except Exception as error:
            text = one_line(error)
            with suppress(OSError, ValueError):
                print(f"leak-report: internal error: {text}", file=sys.stderr)
            self._failures.append(f"{unseen}: {text}")

    def _with_freed(self, report: Report) -> Report:
        """Return a report with the lines that grew and were freed before the end."""
        return with_freed(report, *self._growing.freed(report.leaks, report.kept))

    def complete_inventory(self) -> None:
        """Add what the threads of the program made after its code had returned."""
        if self._inventory is not None:
            with self._no_report_meanwhile(), self._going_on("what its threads made after that"):
                self._inventory.go_on(AFTER_THREADS)

    # ------------------------------------------------------------------ the processes

    def become_worker(self, folder: Path | None = None, *, is_program: bool = False) -> None:
        """Continue as a process that leaves its report to the program that started it.

        Parameters
        ----------
        folder : Path, optional
            The folder of the session, if this process was not forked.
        is_program : bool, default False
            Whether it runs a program of its own: then its leaks are not of the kind ``worker``.
        """
        folder = self._folder if folder is None else folder
        assert folder is not None
        self._folder = folder
        self._children = ChildProcesses(folder, self.settings)
        self.is_worker = True
        self._is_program = is_program
        self._is_over = False
        self._parent = os.getppid()
        self._began_at = utc_of(time.time())
        self._inventory = None
        self._failures = []
        # Each look writes the report too: the parent may kill this process, as a pool does, before
        # the next report is due.
        self._growing = Growing(self._written)
        self.output = folder / f"{os.getpid()}.json"
        while is_program and self.output.exists():
            # This process was another program before, which left a report.
            self.output = self.output.with_stem(f"{self.output.stem}-")
        self._at_exit = None
        self._ticker = self._answers = None
        if self._lives is not None:
            self._lives.forget()
            self._lives = None
        count_handovers()

    def go_on_in_child(self) -> None:
        """Continue in a forked process, with a new detector: the parent reports its own leaks."""
        self._at_termination.remove()
        self.become_worker()
        self._own_pages = OwnPages()
        self.detector.__exit__(None, None, None)
        self.detector = _detector_of(self.settings)
        self.detector.__enter__()
        self._begin()

    def seed(self) -> tuple[str, Settings]:
        """Return what a newly started process needs to open a session."""
        return str(self._folder), self.settings

    def remove_folder(self) -> None:
        """Remove the folder of the session. A process that still runs writes no report any more."""
        if not self.is_worker and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def ends_itself(self, status: int | None) -> None:
        """Write the last report before the process ends without Python's exit functions."""
        if self._is_over:
            return
        report = self.finish("os._exit" if not self.is_worker else "exit", status)
        if self._at_exit is not None:
            self._at_exit(report)
        self.remove_folder()

    def _finish_terminated(self) -> None:
        if self._is_over:
            return
        if not self.is_worker and self._folder is not None:
            LastRequest(self._folder).wait()
        report = self.finish("terminated", -signal.SIGTERM)
        if self._at_exit is not None:
            self._at_exit(report)
        self.remove_folder()

    def becomes(self, command: str) -> ChildProcesses | None:
        """Write a report before the process becomes another program.

        Parameters
        ----------
        command : str
            The command of that program.

        Returns
        -------
        ChildProcesses or None
            The child processes of the session that the program can join. None for the main process,
            whose session ends here.
        """
        if not self.is_worker:
            if self._children is not None:
                self._children.replaced_by(command)
            self.ends_itself(None)
            return None
        assert self._folder is not None
        _, _, _, known_births = complete_log().counts()
        if known_births:
            self._write(self.report("exit", None))
        return self._children

    def _begin(self) -> None:
        if self._folder is not None and self._answer.is_installed:
            say_watched(self._folder)
        if self.output is not None and (self.is_worker or self.output.is_file() or not self.output.exists()):
            self._ticker = Ticker(
                self._write_and_look, _INTERVAL_S, woken=self._look_beside, woken_after_s=_MAIN_THREAD_FIRST_S
            )
            LOG.wake_for_looks(self._ticker.signal.release)
            self._ticker.start()
        if self._folder is not None and self.is_worker:
            self._answers = Answers(self._folder, lambda: self.report("unfinished", None))
            self._answers.start()

    def _end(self) -> None:
        if self._ticker is not None:
            LOG.wake_for_looks(None)
            self._ticker.stop()
            self._ticker = None
        if self._answers is not None:
            self._answers.stop()
            self._answers = None

    def _report_now(self) -> Report | None:
        output = None if self._folder is None else requested_output(self._folder)
        report = self.report("unfinished", None)
        if output is None:
            return report
        write_report(report, output)
        return None

    def _look_beside(self) -> None:
        LOG.look_here(lambda has_more: self._growing.born_beside(has_more=has_more))

    def _write_and_look(self) -> None:
        self._growing.look_beside(self._written)

    def _written(self) -> Report:
        """Write a report with those of other processes, and return the part of this process."""
        # The program waits meanwhile, so look for holders only near its variables.
        own = self._own_report("unfinished", OBJECTS_WHILE_RUNNING)
        # If it cannot be written now, perhaps the next one can. Errors of the last one are raised.
        with suppress(OSError):
            self._write(self._with_others(own, "unfinished", None, None))
        return own

    def _write(self, report: Report) -> None:
        # A process may outlive the program that started it, with whose report the folder goes.
        with suppress(*((FileNotFoundError,) if self.is_worker else ())):
            if self.output is not None:
                write_report(report, self.output)


def _life_recorder() -> LifeRecorder:
    # Imported here because it needs NumPy.
    from ..peaks.program import LifeRecorder

    return LifeRecorder()


def _detector_of(settings: Settings) -> LeakDetector:
    return LeakDetector(frames=settings.frames, sample_nbytes=settings.sample_nbytes, timeline_s=_SAMPLES_EVERY_S)


# ------------------------------------------------------ the endings and beginnings of processes

_SESSIONS: Final[list[Session]] = []
"""The open sessions of this process: none or one."""


def in_session() -> bool:
    """Return whether this process has an open session."""
    return bool(_SESSIONS)


_spawn: Final = cast("Any", spawn)
_ENDINGS: Final = Patch(
    library="python",
    name="os._exit",
    why="a program under leak-report that ends itself writes its report before",
    tested=TESTED_PYTHON,
    guard="it is there",
    otherwise="a program that ends itself leaves no report",
    unseen="processes that end themselves by os._exit",
)
_BEGINNINGS: Final = Patch(
    library="python",
    name="multiprocessing.spawn.get_preparation_data",
    why="processes that a program under leak-report starts anew are watched too",
    tested=TESTED_PYTHON,
    guard="it is there",
    otherwise="processes that are started by spawn or forkserver are not watched",
    unseen="processes that are started by spawn or forkserver",
)
PATCHES.declare(_ENDINGS, _BEGINNINGS)


def _watch_endings() -> None:
    """Patch ``os._exit``, and the function by which `multiprocessing` starts processes."""
    PATCHES.replace(_ENDINGS, os, "_exit", _patched_exit)
    PATCHES.replace(_BEGINNINGS, _spawn, "get_preparation_data", _patched_preparation)


def _patched_exit(leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    @wraps(leave)
    def _exit(status: int) -> NoReturn:
        for session in _SESSIONS[:]:
            try:
                session.ends_itself(status)
            except Exception as error:
                # The process must still end, with its own status.
                _say_not_written(error)
        leave(status)

    return _exit


def _say_not_written(error: Exception) -> None:
    with suppress(OSError, ValueError):
        print(f"leak-report: the report could not be written: {error}", file=sys.stderr, flush=True)


def _patched_preparation(prepare: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    @wraps(prepare)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = dict(prepare(name))
        if _SESSIONS:
            # multiprocessing ignores entries that it does not know. This one opens a session when
            # it is unpickled in the new process.
            data["disposescope"] = _SessionOpener(*_SESSIONS[-1].seed())
        return data

    return get_preparation_data


def _forked() -> None:
    for session in _SESSIONS:
        session.go_on_in_child()


at_forks(in_child=_forked)


class _SessionOpener:
    """Opens a session in a newly started process when it is unpickled there."""

    def __init__(self, folder: str, settings: Settings) -> None:
        self._arguments = folder, settings

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_in_worker, self._arguments


def _open_in_worker(folder: str, settings: Settings) -> None:
    if _SESSIONS:
        return
    session = Session(tuple(sys.argv), False, settings, None)
    session.become_worker(Path(folder))
    session.__enter__()
    atexit.register(session.ends_itself, None)


def _replaced(command: str) -> ChildProcesses | None:
    try:
        return _SESSIONS[-1].becomes(command) if _SESSIONS else None
    except Exception as error:
        # The process must still become that program.
        _say_not_written(error)
        return None


def _children_now() -> ChildProcesses | None:
    return _SESSIONS[-1]._children if _SESSIONS else None


def join(value: str) -> Session | None:
    """Open, in a process started by `subprocess` or `os`, the session that the environment names.

    None if that session is over.

    Parameters
    ----------
    value : str
        The value of the environment variable.
    """
    found = session_of(value)
    if found is None:
        return None
    folder, settings = found
    session = Session(tuple(sys.argv), False, settings, None)
    session.become_worker(folder, is_program=True)
    session.__enter__()
    return session


# Ask a watched program, from another process, for its current report.
#
# A watched process announces itself by a file in the folder of its session, which only its user can
# open. A request is a file there with the name of an output, followed by the signal ``SIGUSR1``.


PREFIX: Final = "leak-report-"
"""How the names of session folders begin, in the folder for temporary files."""

_LOOK_EVERY_S: Final = 0.05
"""Whoever asks looks for the answer after so many seconds."""


class AttachError(Exception):
    """Raised if a process cannot be asked; the message says why in one line."""


def say_watched(folder: Path) -> None:
    """Announce that this process answers requests."""
    (folder / f"watched-{os.getpid()}").touch()


def requested_output(folder: Path) -> Path | None:
    """Return the file that a request names for the report, and remove the request; None without."""
    request = folder / f"request-{os.getpid()}"
    try:
        name = request.read_text(encoding="utf-8")
        request.unlink()
    except OSError:
        return None
    return Path(name)


def ask(pid: int, timeout_s: float) -> Report:
    """Return the current report of another process.

    Raises
    ------
    AttachError
        There is no such process, it is not watched, it is another user's, or it does not answer in
        time.
    """
    number: Any = getattr(signal, "SIGUSR1", None)
    if number is None:
        raise AttachError("this platform has no signal by which a program could be asked")
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise AttachError(f"there is no process {pid}") from None
    except PermissionError:
        raise AttachError(f"process {pid} is another user's") from None
    folder = _folder_of(pid)
    if folder is None:
        # Send no signal: it ends a program that has no handler for it.
        raise AttachError(
            f"process {pid} is not watched, or not yet: start it with `leak-report run`, "
            "or with PYTHONDISPOSESCOPE=leaks"
        )
    answer = folder / f"answer-{os.getpid()}"
    request = folder / f"request-{pid}"
    try:
        request.write_text(str(answer), encoding="utf-8")
        os.kill(pid, number)
        deadline = time.monotonic() + timeout_s
        while not answer.exists():
            if time.monotonic() > deadline:
                raise AttachError(
                    f"process {pid} did not answer within {timeout_s:g} s: it runs code that is no Python's"
                )
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                raise AttachError(f"process {pid} ended before it answered") from None
            time.sleep(_LOOK_EVERY_S)
        return report_from_json(answer.read_text(encoding="utf-8"))
    except (OSError, ReportFileError) as error:
        raise AttachError(f"process {pid} could not be asked: {error}") from None
    finally:
        for file in (request, answer):
            with suppress(OSError):
                file.unlink()


def _folder_of(pid: int) -> Path | None:
    if sys.platform == "win32":
        # A process cannot be asked there.
        return None
    users = os.getuid(), _user_of(pid, os.getuid())
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.stat()
            # Ignore a folder that another user made.
            if status.st_uid in users and (folder / f"watched-{pid}").exists():
                return folder
    return None


def _user_of(pid: int, unknown: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return unknown
