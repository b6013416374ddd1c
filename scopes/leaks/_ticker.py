"""Something that is done now and then while a program runs, beside it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, final

__all__ = ["Ticker"]

_SHARE: Final = 50
"""What is done takes at most one part in so many of the time."""


@final
class Ticker:
    """Calls a function again and again, on a thread of its own, until it is stopped.

    The thread ends before the process forks and goes on after: Python warns of forks of a process with several threads.
    In the child nothing is called. The pauses become longer where the function takes long, so that it costs two per
    cent of the time at most.

    Parameters
    ----------
    function : callable
        What is called. An exception ends the calls: `failure` holds it.
    interval_s : float
        The shortest pause between two calls.
    """

    __slots__ = ("_function", "_interval_s", "_pid", "_stop", "_thread", "failure")

    failure: BaseException | None

    def __init__(self, function: Callable[[], object], interval_s: float) -> None:
        self._function = function
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self.failure = None

    def start(self) -> None:
        """Begin, the first call after one pause."""
        self._pid = os.getpid()
        self._go_on()
        _RUNNING.append(self)

    def stop(self) -> None:
        """No call is running when this returns, and none will be made. Idempotent."""
        if self in _RUNNING:
            _RUNNING.remove(self)
        self._pause()

    def _go_on(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="leak-report", daemon=True)
        self._thread.start()

    def _pause(self) -> None:
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause = self._interval_s
        while not self._stop.wait(pause):
            began = time.perf_counter()
            try:
                self._function()
            except BaseException as error:
                self.failure = error
                return
            pause = max(self._interval_s, _SHARE * (time.perf_counter() - began))


_RUNNING: Final[list[Ticker]] = []


def _before_fork() -> None:
    for ticker in _RUNNING:
        ticker._pause()


def _after_fork_in_parent() -> None:
    for ticker in _RUNNING:
        ticker._go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_RUNNING.clear)
