"""What was run, how, and in which processes."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, final

__all__ = ["LOADED_AT_S", "Ending", "Process", "ProgramFacts", "Settings", "this_process", "this_program"]

Ending = Literal["exit", "exception", "interrupt", "killed", "os._exit", "running"]
"""How a program ended; ``"running"`` where the report was made while it ran."""


@final
@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What was run.

    Attributes
    ----------
    argv : tuple of str
        The program and its arguments.
    module : bool
        Whether the program was named as a module (``-m``).
    python, numpy, torch, jax : str or None
        Versions; None of what the program did not import.
    platform : str
        As ``sys.platform`` calls it.
    pid : int
        The main process.
    started_at : str
        When it started, in UTC.
    duration_s : float
        How long it ran until the report was made.
    status : int or None
        Its exit status, where it is known.
    ended : str
        How it ended.
    """

    argv: tuple[str, ...]
    module: bool
    python: str | None
    numpy: str | None
    torch: str | None
    jax: str | None
    platform: str
    pid: int
    started_at: str
    duration_s: float
    status: int | None
    ended: Ending


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What the detector was asked for.

    Attributes
    ----------
    frames : int
        How many lines of each birth's stack are kept.
    sample_nbytes : int or None
        One birth is kept for so many bytes; None where each is.
    kinds : tuple of str or None
        The kinds of tensor that are watched; None for all.
    threshold_nbytes : int
        Leaks of fewer bytes are left out.
    time_limit_s : float
        How long holders were searched for.
    """

    frames: int = 1
    sample_nbytes: int | None = None
    kinds: tuple[str, ...] | None = None
    threshold_nbytes: int = 0
    time_limit_s: float = 5.0


@final
@dataclass(frozen=True, slots=True)
class Process:
    """A process of the run.

    Attributes
    ----------
    pid : int
        Its number.
    parent : int or None
        That of the process which started it.
    role : {"main", "worker"}
        What it is.
    ended : str
        How it ended.
    status : int or None
        Its exit status, where it is known.
    peak_rss_nbytes : int
        The most memory that it had resident; 0 where that is unknown.
    """

    pid: int
    parent: int | None
    role: Literal["main", "worker"]
    ended: Ending
    status: int | None
    peak_rss_nbytes: int


LOADED_AT_S: Final = time.time()
"""When the run began, as far as this library saw it."""


def this_program() -> ProgramFacts:
    """What is known of the program of this process while it runs."""
    now = time.time()
    started = datetime.fromtimestamp(LOADED_AT_S, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return ProgramFacts(
        argv=tuple(str(word) for word in getattr(sys, "argv", ())),
        module=False,
        python=".".join(map(str, sys.version_info[:3])),
        numpy=_version_of("numpy"),
        torch=_version_of("torch"),
        jax=_version_of("jax"),
        platform=sys.platform,
        pid=os.getpid(),
        started_at=started,
        duration_s=max(0.0, now - LOADED_AT_S),
        status=None,
        ended="running",
    )


def this_process() -> Process:
    """What is known of this process while it runs."""
    return Process(os.getpid(), None, "main", "running", None, _peak_rss_nbytes())


def _version_of(module: str) -> str | None:
    version: object = getattr(sys.modules.get(module), "__version__", None)
    return None if version is None else str(version)


def _peak_rss_nbytes() -> int:
    try:
        import resource
    except ImportError:
        # There is no such module on Windows.
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kilobytes, but on macOS in bytes: https://man7.org/linux/man-pages/man2/getrusage.2.html
    return peak if sys.platform == "darwin" else peak * 1024
