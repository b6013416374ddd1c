"""A report on request: what is known now, printed to stderr when the process gets ``SIGUSR1``."""

from __future__ import annotations

import signal
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, final

__all__ = ["SignalAnswer"]


@final
class SignalAnswer:
    """Prints what a function returns whenever the process gets ``SIGUSR1``.

    The handler that was there is called as well. Where there is no such signal, or from another thread than the main
    one, nothing is installed.

    Parameters
    ----------
    tell : callable
        Called on a thread of its own, so that it may wait for a lock that the interrupted code has. Where it returns
        None there is nothing to print.
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
