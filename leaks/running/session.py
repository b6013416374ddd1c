"""A program that is watched from outside: its detector, its report file, its processes, and requests to it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import spawn
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast, final

from ...scopes.forks import at_forks
from ..detector.detector import LeakDetector
from ..detector.recording import Ticker
from ..detector.watching import count_handovers
from ..report.report import Ending, Report, Settings, above, of_kinds, of_worker
from ..reporters.json_report import ReportFileError, report_from_json
from ..saved.files import merged, reports_in, write_report
from ..saved.settings_file import Suppression, suppressed_by

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "PREFIX",
    "AttachError",
    "Session",
    "SignalAnswer",
    "ask",
    "in_session",
    "requested_output",
    "say_watched",
]

# A program that is watched from outside: its detector, the file of its report, and the processes
# that it starts.
#
# A report is known at any moment: it is written now and then while the program runs, when it ends
# in whichever way Python notices, and by each process that it forks or that `multiprocessing`
# starts for it. What a process wrote last is what is known of it if it is killed.


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
        """The last report, written where it goes.

        The first call makes it; a later one finds it made.
        """
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
    """Hear of forks, of processes that `multiprocessing` starts, and of ``os._exit``.

    Once in a process.
    """
    if _watched:
        return
    _watched.append(True)
    at_forks(in_child=_forked)
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
            # What starts a process takes no notice of other entries than its own; this one is at
            # work when it is read.
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


# Asking a program that is watched, from another process, for what is known now.
#
# A process that is watched says so by a file in the folder of its session, which is open to its
# user alone. Who asks puts the name of an output there and sends ``SIGUSR1``.


PREFIX: Final = "leak-report-"
"""How the folders of sessions begin, in the folder for temporary files."""

_LOOK_EVERY_S: Final = 0.05


class AttachError(Exception):
    """A process cannot be asked; the message says why in one line."""


def say_watched(folder: Path) -> None:
    """Say that this process answers."""
    (folder / f"watched-{os.getpid()}").touch()


def requested_output(folder: Path) -> Path | None:
    """Where somebody who asks wants the report of this process, once; None where nobody does."""
    request = folder / f"request-{os.getpid()}"
    try:
        name = request.read_text(encoding="utf-8")
        request.unlink()
    except OSError:
        return None
    return Path(name)


def ask(pid: int, timeout_s: float) -> Report:
    """The report of another process, as it is now.

    Raises
    ------
    AttachError
        There is no such process, it is not watched, it is not the user's, or it does not answer in
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
        # The signal would end a program that does not wait for it.
        raise AttachError(
            f"process {pid} is not watched: start it with `leak-report run`, or with PYTHONDISPOSESCOPE=leaks"
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
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            kept = folder.stat()
            # Not a folder that somebody else laid out.
            if kept.st_uid in (os.getuid(), _user_of(pid)) and (folder / f"watched-{pid}").exists():
                return folder
    return None


def _user_of(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return os.getuid()


# A report on request: what is known now, printed to stderr when the process gets ``SIGUSR1``.


@final
class SignalAnswer:
    """Prints what a function returns whenever the process gets ``SIGUSR1``.

    The handler that was there is called as well. Where there is no such signal, or from another
    thread than the main one, nothing is installed.

    Parameters
    ----------
    tell : callable
        Called on a thread of its own, so that it may wait for a lock that the interrupted code has.
        Where it returns None there is nothing to print.
    """

    __slots__ = ("_before", "_is_installed", "_tell")

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._before: Any = None
        self._is_installed = False

    @property
    def is_installed(self) -> bool:
        """Whether the process answers."""
        return self._is_installed

    def install(self) -> None:
        """Begin to answer."""
        if hasattr(signal, "SIGUSR1") and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGUSR1, self._answer)
            self._is_installed = True

    def remove(self) -> None:
        """Put back what was there, unless another handler has been installed since."""
        if not self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._is_installed = False
        if signal.getsignal(signal.SIGUSR1) == self._answer:
            # None stands for a handler that was not installed from Python.
            signal.signal(signal.SIGUSR1, signal.SIG_DFL if self._before is None else self._before)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        # Not a threading.Thread: starting one takes a lock that the interrupted code may have.
        start_new_thread(self._print, ())
        if callable(self._before):
            self._before(number, frame)

    def _print(self) -> None:
        try:
            told = self._tell()
            if told is None:
                return
            text = f"leak-report: {told}"
        except Exception as error:
            text = f"leak-report: there is no report: {error!r}"
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
