"""``PYTHONDISPOSESCOPE=leaks``: any program that imports disposescope is watched, and its report printed at its end."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from contextlib import suppress
from typing import Final

from ..report.report import Report, Settings
from .session import Session, in_session

__all__ = [
    "VARIABLE",
    "obey_environment",
]

VARIABLE: Final = "PYTHONDISPOSESCOPE"
_OURS: Final = ("leak-report", "disposescope.leaks.commands")


def obey_environment() -> None:
    """Do what the environment variable says. Called once, when the package has been imported."""
    wanted = os.environ.get(VARIABLE, "").strip()
    if not wanted:
        return
    if wanted != "leaks":
        warnings.warn(
            f"{VARIABLE}={wanted!r} is not known and does nothing; {VARIABLE}=leaks reports leaks",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    if in_session() or any(os.path.basename(word).startswith(_OURS) for word in sys.orig_argv[:4]):
        # Under leak-report, which watches already or is about to.
        return
    session = Session(tuple(sys.argv), False, Settings(), None, _print)
    session.__enter__()
    atexit.register(_end, session)


def _end(session: Session) -> None:
    if not session.is_worker:
        _print(session.finish("exit", None))


def _print(report: Report) -> None:
    # Where stderr has been closed there is nobody to tell.
    with suppress(OSError, ValueError):
        print(f"leak-report: {report}", file=sys.stderr, flush=True)
