"""Watch this program, or join a session, as the variable ``PYTHONDISPOSESCOPE`` says."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...scopes.base.process import PATCHES, TESTED_PYTHON, Patch
from ..report.report import Ending, Report, Settings
from .children import JOIN, VARIABLE, watches_itself
from .program import error_text
from .session import Session, in_session, join

__all__ = ["obey_environment"]

_BEFORE_THREADS_END: Final = Patch(
    library="python",
    name="threading._register_atexit, which is called and not changed",
    why="PYTHONDISPOSESCOPE=leaks looks at what there is before threads are joined",
    tested=TESTED_PYTHON,
    guard="it is there",
    otherwise="it looks when the exit functions run: what threads held until then is not reported",
    unseen="what threads held until the end of the program",
)
PATCHES.declare(_BEFORE_THREADS_END)

_OUR_COMMANDS: Final = ("leak-report", "disposescope.leaks.commands")


def obey_environment() -> None:
    """Do what the environment variable asks for. Called when the package is imported."""
    wanted = os.environ.get(VARIABLE, "").strip()
    if not wanted:
        return
    if wanted != "leaks" and not wanted.startswith(JOIN):
        warnings.warn(
            f"{VARIABLE}={wanted!r} is not known and does nothing; {VARIABLE}=leaks reports leaks",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    if in_session() or any(os.path.basename(word).startswith(_OUR_COMMANDS) for word in sys.orig_argv[:4]):
        # The program runs under leak-report, which watches it already or is about to.
        watches_itself(wanted)
        return
    session: Session | None
    if wanted.startswith(JOIN):
        session = join(wanted)
        if session is not None:
            _finish_at_exit(session, lambda _: None)
        return
    session = Session(tuple(sys.argv), False, Settings(), None, _print)
    session.__enter__()
    _finish_at_exit(session, _print)


def _finish_at_exit(session: Session, show: Callable[[Report], object]) -> None:
    """Take the inventory when the program's code has returned, and finish the session at exit.

    `show` is called with the last report.
    """
    pid = os.getpid()

    def take_inventory() -> None:
        # A forked process calls this too.
        if os.getpid() == pid:
            session.take_inventory(_ending())

    def finish() -> None:
        if os.getpid() == pid:
            error = _error()
            show(session.finish(_ending(), None, None if error is None else error_text(error)))
            session.remove_folder()

    # Functions that are registered so run before threads are joined (concurrent.futures does the
    # same). Exit functions run after that.
    register: Callable[[Callable[[], object]], object] | None = getattr(threading, "_register_atexit", None)
    if register is None:
        PATCHES.fail(_BEFORE_THREADS_END, "threading has no _register_atexit")
    else:
        with suppress(RuntimeError):
            register(take_inventory)
    atexit.register(finish)


def _ending() -> Ending:
    error = _error()
    return "exit" if error is None else "interrupt" if isinstance(error, KeyboardInterrupt) else "exception"


def _error() -> BaseException | None:
    """Return the exception that ended this program; None where none did."""
    error: object = getattr(sys, "last_exc", getattr(sys, "last_value", None))
    # In a notebook or at a prompt it is the exception of an earlier input.
    if isinstance(error, BaseException) and not hasattr(sys, "ps1") and "IPython" not in sys.modules:
        return error
    return None


def _print(report: Report) -> None:
    # The standard error may be closed; then nothing can be printed.
    with suppress(OSError, ValueError):
        print(f"leak-report: {report}", file=sys.stderr, flush=True)
