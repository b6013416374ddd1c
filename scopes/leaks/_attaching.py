"""Asking a program that is watched, from another process, for what is known now.

A process that is watched says so by a file in the folder of its session, which is open to its user alone. Who asks puts
the name of an output there and sends ``SIGUSR1``.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .reporters._json import ReportFileError, report_from_json

if TYPE_CHECKING:
    from ._report import Report

__all__ = ["PREFIX", "AttachError", "ask", "requested_output", "say_watched"]

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
        There is no such process, it is not watched, it is not the user's, or it does not answer in time.
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
