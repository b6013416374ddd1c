"""Handlers of signals in a watched process: print a report; or write the last report and end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, MethodType
from typing import Any, Final, final

from ...scopes.base.process import PATCHES, TESTED_PYTHON, Patch
from ..holders.roots import handler_of

__all__ = ["ReportAtTermination", "SignalAnswer"]

_ASKED: Final = Patch(
    library="python",
    name="the handler of SIGUSR1",
    why="a program under leak-report prints its report, or answers leak-report attach; its own handler is called too",
    tested=TESTED_PYTHON,
    guard="there is such a signal, and the main thread begins to watch",
    otherwise="the program cannot be asked",
)
_ENDED: Final = Patch(
    library="python",
    name="the handler of SIGTERM",
    why="a program under leak-report that would end by it writes its report before",
    tested=TESTED_PYTHON,
    guard="the program has no handler of its own, and the main thread begins to watch",
    otherwise="a program that is told to end leaves the report that was written last",
)
PATCHES.declare(_ASKED, _ENDED)

# Windows has no such signal.
_SIGNAL: Final[Any] = getattr(signal, "SIGUSR1", None)


@final
class SignalAnswer:
    """Prints the result of a function whenever the process gets ``SIGUSR1``.

    The handler that was there is called as well. Where there is no such signal, or from another
    thread than the main one, nothing is installed.

    Parameters
    ----------
    answer : callable
        Called on a thread of its own, so that it may wait for a lock that the interrupted code has.
        If it returns None nothing is printed.
    """

    __slots__ = ("_before", "_is_installed", "_make_answer")

    def __init__(self, answer: Callable[[], object]) -> None:
        self._make_answer = answer
        # The handler before.
        self._before: Any = None
        self._is_installed = False

    @property
    def is_installed(self) -> bool:
        """Return whether the process answers the signal."""
        return self._is_installed

    def install(self) -> None:
        """Install the handler of the signal."""
        if _SIGNAL is not None and threading.current_thread() is threading.main_thread():
            self._is_installed = PATCHES.change(_ASKED, self._begin, self._end)

    def remove(self) -> None:
        """Restore the former handler, unless another handler has been installed since."""
        if self._is_installed and threading.current_thread() is threading.main_thread():
            self._is_installed = False
            PATCHES.restore(_ASKED)

    def _begin(self) -> None:
        self._before = signal.signal(_SIGNAL, self._answer)

    def _end(self) -> None:
        if _is_method(handler_of(_SIGNAL), self._answer):
            # None stands for a handler that was not installed from Python.
            signal.signal(_SIGNAL, signal.SIG_DFL if self._before is None else self._before)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        # Do not use threading.Thread: starting one takes a lock that the interrupted code may hold.
        start_new_thread(self._print, ())
        if callable(self._before):
            self._before(number, frame)

    def _print(self) -> None:
        try:
            answer = self._make_answer()
            if answer is None:
                return
            text = f"leak-report: {answer}"
        except Exception as error:
            text = f"leak-report: there is no report: {error!r}"
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def _is_method(thing: Any, method: Any) -> bool:
    return type(thing) is MethodType and thing.__self__ is method.__self__ and thing.__func__ is method.__func__


_WAIT_S: Final = 2.0
"""The main thread waits so long for the report; then it goes on, as it may have a lock."""


@final
class ReportAtTermination:
    """Has a process that gets ``SIGTERM`` write its last report, and then end by the signal.

    Services and containers are ended by this signal, and a program without a handler ends at once.
    If the program has a handler, also one that it installs later, nothing is done. A second signal
    ends the process without a report. Where there is no such signal, or from another thread than
    the main one, nothing is installed.

    Parameters
    ----------
    finish : callable
        Writes the report. Called on a thread of its own, so that it may wait for a lock that the
        interrupted code has.
    """

    __slots__ = ("_finish", "_is_done", "_is_installed", "_is_told")

    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish = finish
        self._is_installed = False
        self._is_told = False
        self._is_done = threading.Event()

    def install(self) -> None:
        """Install the handler, where the program would end by the signal."""
        if (
            os.name == "posix"
            and threading.current_thread() is threading.main_thread()
            and handler_of(signal.SIGTERM) == signal.SIG_DFL
        ):
            self._is_installed = PATCHES.change(_ENDED, self._begin, self._end)

    def remove(self) -> None:
        """Have the signal end the process as before, unless another handler has been installed."""
        if self._is_installed and threading.current_thread() is threading.main_thread():
            self._is_installed = False
            PATCHES.restore(_ENDED)

    def _begin(self) -> None:
        signal.signal(signal.SIGTERM, self._answer)

    def _end(self) -> None:
        if _is_method(handler_of(signal.SIGTERM), self._answer):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _answer(self, number: int, _frame: FrameType | None) -> None:
        if not _is_method(handler_of(number), self._answer):
            # A handler of the program calls the one before, which would do nothing if this one had
            # not been installed.
            return
        if not self._is_told:
            self._is_told = True
            start_new_thread(self._tell, (number,))
            # The report may need a lock that the interrupted code has. Then that code goes on until
            # the report is written; the thread sends the signal again.
            if not self._is_done.wait(_WAIT_S):
                return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _tell(self, number: int) -> None:
        try:
            self._finish()
        except Exception as error:
            with suppress(OSError, ValueError):
                print(f"leak-report: there is no report: {error!r}", file=sys.stderr, flush=True)
        self._is_done.set()
        os.kill(os.getpid(), number)
