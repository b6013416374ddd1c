"""A report: the leaks, worst first; the facts of the run; what of it is shown; and its text."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, final

from ...scopes.out_of_memory import bytes_text
from .leaks import Leak, fingerprint_of
from .live import LiveSite
from .timeline import Timeline

__all__ = [
    "LOADED_AT_S",
    "Ending",
    "Process",
    "ProgramFacts",
    "Report",
    "Settings",
    "Suppressed",
    "UnusedSuppression",
    "above",
    "of_kinds",
    "of_worker",
    "text_of",
    "this_process",
    "this_program",
]

# What was run, how, and in which processes.


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


# A report: the leaks, worst first, and what else is known of the run that they were found in.


@final
@dataclass(frozen=True, slots=True)
class Suppressed:
    """A leak that the user does not want to hear of, and why.

    Attributes
    ----------
    leak : Leak
        What would have been reported.
    reason : str
        The reason that was given for it.
    """

    leak: Leak
    reason: str


@final
@dataclass(frozen=True, slots=True)
class UnusedSuppression:
    """A suppression that no leak needed.

    Attributes
    ----------
    file : str
        The file that it stands in.
    index : int
        Its place among the suppressions of the file, from 0.
    reason : str
        The reason that was given for it.
    """

    file: str
    index: int
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What leaked. ``str()`` of it is its text.

    Attributes
    ----------
    program : ProgramFacts
        What was run.
    settings : Settings
        What the detector was asked for.
    count : int
        How many resources leaked.
    nbytes : int
        The bytes that they pin, each storage once.
    leaks : tuple of Leak
        The leaks, those of the most bytes first.
    kept : tuple of Leak
        What is alive because variables of the program lead to it, and shows no sign of a leak.
    leftovers : tuple of Leak
        What was disposed, or has escaped, and is only named by a left-over variable. It is no leak.
    suppressed : tuple of Suppressed
        The leaks that were not to be reported.
    unused_suppressions : tuple of UnusedSuppression
        The suppressions that matched nothing.
    sites : tuple of LiveSite
        What is live, leak or not, the most bytes first.
    timeline : Timeline
        The course of the run.
    processes : tuple of Process
        The processes that the report is of.
    """

    program: ProgramFacts = field(default_factory=this_program)
    settings: Settings = field(default_factory=Settings)
    count: int = 0
    nbytes: int = 0
    leaks: tuple[Leak, ...] = ()
    kept: tuple[Leak, ...] = ()
    leftovers: tuple[Leak, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    unused_suppressions: tuple[UnusedSuppression, ...] = ()
    sites: tuple[LiveSite, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)
    processes: tuple[Process, ...] = field(default_factory=lambda: (this_process(),))

    def __str__(self) -> str:
        return text_of(self)


# What of a report is told: the kinds of tensor that were asked for, leaks of many bytes, and what a
# worker keeps.


_KEPT_BY_A_WORKER: Final = frozenset({"escaped", "growth"})


def of_worker(leak: Leak) -> Leak:
    """A leak as a worker has it: what it keeps is the worker's, and stays as long as it."""
    if leak.kind not in _KEPT_BY_A_WORKER:
        return leak
    return replace(
        leak,
        kind="worker",
        explanation=f"A worker process keeps it. {leak.explanation}",
        fingerprint=fingerprint_of("worker", leak.tensor_kind, leak.site, leak.op),
    )


def of_kinds(report: Report, kinds: tuple[str, ...] | None) -> Report:
    """The report without what is of other kinds of tensor."""
    if kinds is None:
        return report
    leaks = _leaks_of(report.leaks, kinds)
    left_out = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    return replace(
        report,
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, report.nbytes - left_out),
        leaks=leaks,
        kept=_leaks_of(report.kept, kinds),
        leftovers=_leaks_of(report.leftovers, kinds),
        sites=tuple(site for site in report.sites if site.kind in kinds),
    )


def _leaks_of(leaks: tuple[Leak, ...], kinds: tuple[str, ...]) -> tuple[Leak, ...]:
    return tuple(leak for leak in leaks if leak.tensor_kind is None or leak.tensor_kind in kinds)


def above(report: Report, threshold_nbytes: int) -> Report:
    """The report without leaks of few bytes."""
    leaks = tuple(leak for leak in report.leaks if leak.nbytes >= threshold_nbytes)
    if len(leaks) == len(report.leaks):
        return report
    left_out = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    return replace(
        report, leaks=leaks, count=sum(leak.count for leak in leaks), nbytes=max(0, report.nbytes - left_out)
    )


# The report as text for a terminal.


_INDENT = " " * 5


def text_of(report: Report) -> str:
    """The report, worst first, with a line for the total; ``"no leaks"`` where there is none.

    Parameters
    ----------
    report : Report
        Made from a snapshot, or read from a file.
    """
    lines: list[str] = []
    if report.leaks:
        sites = len({leak.site for leak in report.leaks})
        pinned = bytes_text(report.nbytes)
        lines.append(f"{_counted(report.count, 'leak')} at {_counted(sites, 'site')}, {pinned} pinned, worst first")
        for number, leak in enumerate(report.leaks, 1):
            lines += ["", *_leak_lines(number, leak)]
    else:
        lines.append("no leaks")
    for title, rows in (
        ("no leak, alive and held by the program:", report.kept),
        ("no leak, disposed or escaped, and only named by a left-over variable:", report.leftovers),
    ):
        if rows:
            lines += ["", title]
            lines += [f"{_INDENT}{_what(leak)}, {_size(leak)}born at {_site(leak)}: {leak.holder}" for leak in rows]
    own = [sample for sample in report.timeline.samples if sample.pid in (None, report.program.pid)]
    if report.leaks and own:
        last = own[-1]
        in_use, kept = bytes_text(sum(last.live_nbytes.values())), bytes_text(last.cached_nbytes)
        lines += [
            "",
            f"memory at the end: {bytes_text(last.rss_nbytes)} resident, {in_use} in use by tensors, "
            f"{kept} kept by allocators for later use",
        ]
    if report.suppressed:
        lines += ["", "suppressed:"]
        lines += [f"{_INDENT}{_what(row.leak)} born at {_site(row.leak)}: {row.reason}" for row in report.suppressed]
    if report.unused_suppressions:
        lines += ["", "suppressions that matched nothing:"]
        lines += [f"{_INDENT}{row.file}, number {row.index + 1}: {row.reason}" for row in report.unused_suppressions]
    return "\n".join(lines)


def _leak_lines(number: int, leak: Leak) -> list[str]:
    lines = [f"{number:>3}. {_headline(leak)}"]
    if leak.tensor is not None:
        made = "" if leak.op is None else f" by {leak.op}"
        lines.append(f"{_INDENT}born at {_site(leak)}{made}, {_scopes(leak)}{_age(leak)}")
    elif leak.site is not None:
        lines.append(f"{_INDENT}opened at {_site(leak)}{_age(leak)}")
    lines += [f"{_INDENT}called from {frame}" for frame in leak.frames[1:]]
    if leak.disposal is not None:
        disposals = {str(record.disposal) for record in leak.records if record.disposal is not None}
        more = f" and {len(disposals) - 1} more" if len(disposals) > 1 else ""
        lines.append(f"{_INDENT}disposed at {leak.disposal}{more}")
    if leak.kind == "view":
        lines.append(f"{_INDENT}view: {bytes_text(leak.used_nbytes)} used, {bytes_text(leak.nbytes)} pinned")
    if leak.trend is not None:
        trend = leak.trend
        lines.append(
            f"{_INDENT}grows by {_rate(trend.count_per_pass)} and {bytes_text(round(trend.nbytes_per_pass))} per pass, "
            f"over {trend.passes} passes"
        )
    lines += [
        f"{_INDENT}holder {text}" if text.startswith("not found") else f"{_INDENT}held by {text}"
        for text in leak.holders
    ]
    lines += [f"{_INDENT}whose graph is carried by {text}" for text in leak.carriers]
    return lines


def _headline(leak: Leak) -> str:
    if leak.tensor is None:
        return f"{leak.kind} ({leak.sure}): {leak.explanation}"
    state = "alive" if leak.state == "alive" else "disposed under a live reference"
    return f"{leak.kind} ({leak.sure}): {_what(leak)}, {bytes_text(leak.nbytes)}, {state}"


def _rate(per_pass: float) -> str:
    return f"{per_pass:.2f}".rstrip("0").rstrip(".")


def _what(leak: Leak) -> str:
    described = dict.fromkeys(str(record) for record in leak.records)
    more = f" and {_counted(len(described) - 1, 'other shape')}" if len(described) > 1 else ""
    return f"{leak.count:,} × {leak.tensor}{more}"


def _size(leak: Leak) -> str:
    return "" if leak.state == "disposed" else f"{bytes_text(leak.nbytes)}, "


def _site(leak: Leak) -> str:
    return "an unknown site" if leak.site is None else str(leak.site)


def _scopes(leak: Leak) -> str:
    names = list(leak.scopes)
    if names in ([], [None]):
        return "outside every scope"
    told = [
        "outside every scope" if name is None else repr(name) if name else "a scope without a name"
        for name in names[:3]
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    prefix = "in scope " if names[0] else "in "
    return f"{prefix}{', '.join(told)}{more}"


def _age(leak: Leak) -> str:
    if leak.oldest_age_s is None or leak.generation is None:
        return ""
    return f", {leak.oldest_age_s:.1f} s and {_counted(leak.generation, 'closed scope')} ago"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
