"""A report: the leaks, worst first; the facts of the run; filters; and its text."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final, Literal, final

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import shown
from ...scopes.kinds import MAPPED
from .leaks import Leak, fingerprint_of
from .live import LiveSite
from .peak import ProgramPeak
from .records import html_table
from .retainer import Retainer, noun_of
from .timeline import UNASKED, Timeline

__all__ = [
    "LOADED_AT_S",
    "OBJECTS_WHILE_RUNNING",
    "OBJECT_LIMIT",
    "Ending",
    "Process",
    "ProgramFacts",
    "Report",
    "Settings",
    "Suppressed",
    "TENSOR_KINDS",
    "UnusedSuppression",
    "Verdict",
    "above",
    "apart",
    "headline_of",
    "held_by",
    "of_kinds",
    "of_worker",
    "size_of",
    "text_of",
    "undecided_of",
    "utc_of",
    "with_freed",
    "without_growth_of_graphs",
]

# The program, the settings, and the processes.


OBJECT_LIMIT: Final = 4_000_000
"""How many objects a search for holders reaches at most, unless another limit is given."""

OBJECTS_WHILE_RUNNING: Final = 20_000
"""The same for a report that is made while the program runs: the program waits for it."""

TENSOR_KINDS: Final = ("Tensor", "PackedSequence", "numpy.ndarray", "torch.Tensor", "jax.Array")
"""The kinds of tensor that no program has to register."""

Ending = Literal[
    "exit", "exception", "interrupt", "terminated", "killed", "os._exit", "running", "unfinished", "not run"
]
"""How a program ended; ``"running"`` where it asked for the report itself, ``"unfinished"`` where
``leak-report`` made the report before the program ended, ``"not run"`` where none of it ran.
"""

Verdict = Literal["leaks", "suspects", "undecided", "clean"]
"""What a report says of a run as a whole: see `Report.verdict`."""


@final
@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The program that was run.

    Attributes
    ----------
    argv : tuple of str
        The program and its arguments.
    module : bool
        Whether the program was named as a module (``-m``).
    python, numpy, torch, jax : str or None
        The versions; None for a library that the program did not import.
    platform : str
        The value of ``sys.platform``.
    pid : int
        The id of the main process.
    started_at : str
        When the program started, in UTC.
    duration_s : float
        How long the program ran until the report was made.
    status : int or None
        Its exit status, where it is known.
    ended : str
        How it ended.
    error : str or None
        The exception that ended it: its type and message.
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
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the detector.

    Attributes
    ----------
    frames : int
        The number of frames that are kept of the stack of each birth.
    sample_nbytes : int or None
        One birth is recorded for so many bytes; None if every birth is.
    kinds : tuple of str or None
        The kinds of tensor that are watched; None for all.
    threshold_nbytes : int
        Leaks of fewer bytes are suppressed.
    object_limit : int
        How many objects the search for holders reached at most; 0 where there was no search.
    """

    frames: int = 1
    sample_nbytes: int | None = None
    kinds: tuple[str, ...] | None = None
    threshold_nbytes: int = 0
    object_limit: int = OBJECT_LIMIT


@final
@dataclass(frozen=True, slots=True)
class Process:
    """A process of the run.

    Attributes
    ----------
    pid : int
        The id of the process.
    parent : int or None
        The id of the process that started it.
    role : {"main", "worker"}
        Whether it is the program, or was started by it.
    ended : str
        How it ended.
    status : int or None
        Its exit status, if it is known.
    peak_rss_nbytes : int
        Its peak of resident memory; 0 if that is unknown.
    rank : int or None
        Its rank: the environment variable ``RANK``, which torchrun and other launchers set; None
        without it.
    began_at, ended_at : str or None
        When it began and ended, in UTC; None if that is not known. A process that still runs, or
        was killed, has no end.
    """

    pid: int
    parent: int | None
    role: Literal["main", "worker"]
    ended: Ending
    status: int | None
    peak_rss_nbytes: int
    rank: int | None = None
    began_at: str | None = None
    ended_at: str | None = None


LOADED_AT_S: Final = time.time()
"""When this module was imported, in seconds since the epoch: taken for the beginning of the run."""


def this_program() -> ProgramFacts:
    """Return the facts about the program of this process while it runs."""
    now = time.time()
    return ProgramFacts(
        argv=tuple(str(word) for word in getattr(sys, "argv", ())),
        module=False,
        python=".".join(map(str, sys.version_info[:3])),
        numpy=_version_of("numpy"),
        torch=_version_of("torch"),
        jax=_version_of("jax"),
        platform=sys.platform,
        pid=os.getpid(),
        started_at=utc_of(LOADED_AT_S),
        duration_s=max(0.0, now - LOADED_AT_S),
        status=None,
        ended="running",
    )


def this_process() -> Process:
    """Return the facts about this process while it runs."""
    return Process(os.getpid(), None, "main", "running", None, _peak_rss_nbytes(), _rank(), utc_of(LOADED_AT_S))


def utc_of(time_s: float) -> str:
    """Return a time, in seconds since the epoch, as text in UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _rank() -> int | None:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


def _version_of(module: str) -> str | None:
    version: object = getattr(sys.modules.get(module), "__version__", None)
    return None if version is None else str(version)


def _peak_rss_nbytes() -> int:
    if sys.platform == "win32":
        # It has no module `resource`.
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The value is in kilobytes, but on macOS in bytes:
    # https://man7.org/linux/man-pages/man2/getrusage.2.html
    return peak if sys.platform == "darwin" else peak * 1024


# A report: the leaks, worst first, and the facts of their run.


@final
@dataclass(frozen=True, slots=True)
class Suppressed:
    """A leak that a suppression matches, or that is smaller than the threshold.

    Attributes
    ----------
    leak : Leak
        The leak that was not reported.
    reason : str
        The reason of the suppression, or what the threshold is.
    """

    leak: Leak
    reason: str


@final
@dataclass(frozen=True, slots=True)
class UnusedSuppression:
    """A suppression that matched no leak.

    Attributes
    ----------
    file : str
        The file with the suppression.
    index : int
        Its position among the suppressions of the file, from 0.
    reason : str
        The reason of the suppression.
    """

    file: str
    index: int
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Report:
    """The report of what leaked. ``str()`` returns it as text.

    Attributes
    ----------
    program : ProgramFacts
        The program that was run.
    settings : Settings
        The settings of the detector.
    count : int
        The number of resources that leaked.
    nbytes : int
        The bytes that they pin, each storage once.
    leaks : tuple of Leak
        The leaks, those with the most bytes first.
    kept : tuple of Leak
        Resources that variables of the program lead to, without a sign of a leak.
    leftovers : tuple of Leak
        Disposed or escaped resources that only a left-over variable refers to. They are no leak.
    suppressed : tuple of Suppressed
        The leaks that a suppression matches, or that are smaller than the threshold.
    unused_suppressions : tuple of UnusedSuppression
        The suppressions that matched nothing.
    sites : tuple of LiveSite
        The live resources by line, leak or not, the most bytes first.
    timeline : Timeline
        Memory, passes and scopes over time.
    processes : tuple of Process
        The processes of the run.
    unwatched : tuple of str
        What is not watched in this installation, version or process, a sentence each.
    kept_nbytes : int
        The bytes of `kept`, each storage once.
    retainers : tuple of Retainer
        The objects that retain the memory of `leaks` and `kept`, one for each cause, the most bytes
        first. Only reports of whole programs have them (``of_program=True``, ``leak-report run``),
        and only where the search for holders came to its end.
    peak : ProgramPeak or None
        The peak of the program's memory; None where it was not recorded (``--peak``).
    no_peak : str or None
        Why a program that was recorded has no peak in the report; otherwise None.
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
    unwatched: tuple[str, ...] = ()
    kept_nbytes: int = 0
    retainers: tuple[Retainer, ...] = ()
    peak: ProgramPeak | None = None
    no_peak: str | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on the run, in a word; None where the program never ran.

        ``"leaks"``: at least one leak is certain or likely. ``"suspects"``: there are only possible
        leaks. ``"undecided"``: no leak was found, but not everything could be judged; `undecided`
        says what, and what to do. ``"clean"``: no leak was found, and everything was judged.
        """
        if self.program.ended == "not run":
            return None
        if any(leak.sure != "possible" for leak in self.leaks):
            return "leaks"
        if self.leaks:
            return "suspects"
        return "undecided" if self.undecided else "clean"

    @property
    def undecided(self) -> tuple[str, ...]:
        """Return what could not be judged, why, and how it can be: a sentence each."""
        return tuple(undecided_of(self))

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return f"<Report: {text_of(self).partition(chr(10))[0]}; print() shows it>"

    def _repr_html_(self) -> str:
        """Return a table for a notebook, one row for each leak."""
        columns = ("kind", "bytes", "count", "what", "born at", "held by")
        rows = (
            (
                f"{leak.kind} ({leak.sure})",
                bytes_text(leak.nbytes),
                f"{leak.count:,}",
                leak.tensor or leak.explanation,
                _site(leak),
                leak.holder,
            )
            for leak in self.leaks
        )
        first = text_of(self).partition("\n")[0]
        return f"<p>{escape(first)}</p>{html_table(columns, rows, len(self.leaks)) if self.leaks else ''}"


# What a report could not judge.


_TO_SAMPLE_MORE: Final = "too few were in the sample; a smaller --sample, or sample_nbytes=, keeps more"
_TO_SEARCH_ON: Final = "--object-limit N, or object_limit= of report(), lifts it"


def undecided_of(report: Report, kinds: Collection[str] | None = None) -> list[str]:
    """Return what a report could not judge, why, and how it can be: a sentence each.

    Parameters
    ----------
    report : Report
        The report.
    kinds : collection of str, optional
        The kinds of leak that matter; by default all.
    """
    if report.program.ended == "not run":
        return [f"the program never ran{_because(report)}"]
    lines = [f"not watched: {text}" for text in report.unwatched]
    if report.program.ended == "unfinished":
        lines.insert(0, f"the program had not ended: this is what was known {_when(report.program)}")
    elif report.program.ended == "exception":
        lines.insert(0, "the program did not come to its end, so what the rest of it keeps is not known")
    if report.settings.kinds is not None:
        known = {*TENSOR_KINDS, *(site.kind for site in report.sites)}
        unknown = [kind for kind in report.settings.kinds if kind not in known]
        lines += [
            f"the filter by kinds names {kind!r}, and nothing of that kind was alive in the end" for kind in unknown
        ]
    limit = f"the search ended at {report.settings.object_limit:,} objects; {_TO_SEARCH_ON}"
    limit_of_killed = f"its process was killed, and the search before ended at {OBJECTS_WHILE_RUNNING:,} objects"
    rows = [leak for leak in (*report.leaks, *report.kept) if leak.unjudged is not None]
    killed = {process.pid for process in report.processes if process.ended == "killed"}
    for unjudged, concerned, question in (
        ("holder", None, "who holds {} is not known: {limit}"),
        ("view", "view", "whether a view pins {} is not known: {limit}"),
        ("growth", "growth", f"{{}}: {_how_to_know(report, 'they grow')}"),
        ("trend", "growth", f"whether {{}} grow is not known: {_TO_SAMPLE_MORE}"),
    ):
        for found, why in (
            ([leak for leak in rows if leak.pid not in killed], limit),
            ([leak for leak in rows if leak.pid in killed], limit_of_killed),
        ):
            open_rows = [leak for leak in found if leak.unjudged == unjudged]
            if open_rows and (kinds is None or concerned is None or concerned in kinds):
                lines.append(question.format(_largest(open_rows), limit=why))
    return lines


def _how_to_know(report: Report, what: str) -> str:
    """Return what shows whether lines grow: passes, or more of them if the program marks some."""
    is_marked = any(each.name not in UNASKED for each in report.timeline.passes)
    how = "let it make more passes" if is_marked else "mark steps with dispose_scope or detector.mark()"
    return f"{how} to know whether {what}"


def _when(program: ProgramFacts) -> str:
    made = datetime.fromisoformat(program.started_at) + timedelta(seconds=program.duration_s)
    return f"{program.duration_s:.0f} s after it began, at {made:%H:%M:%S} UTC"


def _because(report: Report) -> str:
    return "" if report.program.error is None else f" ({report.program.error})"


# Filters of a report: by kind of tensor and by bytes, and the leaks of a worker.


_KEPT_BY_A_WORKER: Final = frozenset({"escaped", "growth"})
"""The kinds of leaks that are of the kind ``worker`` in a worker process."""


def of_worker(leak: Leak) -> Leak:
    """Return the leak of a worker process, with the kind ``worker`` if the process keeps it."""
    if leak.kind not in _KEPT_BY_A_WORKER:
        return leak
    return replace(
        leak,
        kind="worker",
        explanation=f"A worker process keeps it. {leak.explanation}",
        fingerprint=fingerprint_of("worker", leak.tensor_kind, leak.site, leak.op),
    )


def apart(leaks: Sequence[Leak], kept: Sequence[Leak], leftovers: Sequence[Leak]) -> tuple[list[Leak], list[Leak]]:
    """Return the lists of kept and left-over resources without lines of an earlier list."""
    lines = {(leak.site, leak.pid) for leak in leaks if leak.site is not None}
    kept_apart = [leak for leak in kept if (leak.site, leak.pid) not in lines]
    lines |= {(leak.site, leak.pid) for leak in kept if leak.site is not None}
    leftovers_apart = [leak for leak in leftovers if (leak.site, leak.pid) not in lines]
    return kept_apart, leftovers_apart


def with_freed(
    report: Report, freed: Sequence[Leak], retainers: Sequence[Retainer], held: Sequence[Leak] = ()
) -> Report:
    """Return the report with leaks that were freed at the end of the run.

    Their lines are dropped from the kept and left-over resources, and from the leaks in cycles: a
    line that grew may be in a cycle after it was freed.

    Parameters
    ----------
    report : Report
        The report, made after the memory was freed.
    freed : sequence of Leak
        The leaks that were freed.
    retainers : sequence of Retainer
        The objects that retained their memory.
    held : sequence of Leak
        Resources that were held until they were freed.
    """
    lines = {(leak.site, leak.tensor_kind, leak.op) for leak in freed}
    left_out = [
        leak for leak in report.leaks if leak.kind == "cycle" and (leak.site, leak.tensor_kind, leak.op) in lines
    ]
    others = [leak for leak in report.leaks if leak not in left_out]
    # Native growth comes last: the other leaks may explain it.
    leaks = sorted((*others, *freed), key=lambda leak: (leak.kind == "native", -leak.nbytes))
    open_lines = {(leak.site, leak.tensor_kind, leak.op) for leak in held}
    kept = [
        leak
        for leak in report.kept
        if not (leak.kind in ("cycle", "exception") and (leak.site, leak.tensor_kind, leak.op) in open_lines)
    ]
    kept, leftovers = apart(leaks, kept, report.leftovers)
    kept_out = sum(leak.nbytes for leak in report.kept) - sum(leak.nbytes for leak in kept)
    whole = replace(
        report,
        leaks=tuple(leaks),
        count=report.count + sum(leak.count for leak in freed) - sum(leak.count for leak in left_out),
        nbytes=max(0, report.nbytes + sum(leak.nbytes for leak in freed) - sum(leak.nbytes for leak in left_out)),
        kept=tuple(sorted((*kept, *held), key=lambda leak: -leak.nbytes)),
        kept_nbytes=max(0, report.kept_nbytes - kept_out) + sum(leak.nbytes for leak in held),
        leftovers=tuple(leftovers),
        retainers=tuple(sorted((*report.retainers, *retainers), key=lambda row: (-row.nbytes, row.holder))),
    )
    return without_growth_of_graphs(whole)


def without_growth_of_graphs(report: Report) -> Report:
    """Return the report without native growth of which leaking graphs explain half or more.

    The nodes of graphs are no tensors. They also save memory whose birth nobody can record, such as
    that for a second ``backward()``.
    """
    in_graphs_nbytes = sum(leak.graph_nbytes for leak in report.leaks)
    leaks = [leak for leak in report.leaks if leak.kind != "native" or leak.nbytes > 2 * in_graphs_nbytes]
    return replace(report, leaks=tuple(leaks), count=report.count - len(report.leaks) + len(leaks))


def of_kinds(report: Report, kinds: tuple[str, ...] | None) -> Report:
    """Return the report with only some kinds of tensor; with all where `kinds` is None."""
    if kinds is None:
        return report
    leaks = _leaks_of(report.leaks, kinds)
    left_out = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    kept = _leaks_of(report.kept, kinds)
    kept_out = sum(leak.nbytes for leak in report.kept) - sum(leak.nbytes for leak in kept)
    return replace(
        report,
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, report.nbytes - left_out),
        leaks=leaks,
        kept=kept,
        kept_nbytes=max(0, report.kept_nbytes - kept_out),
        leftovers=_leaks_of(report.leftovers, kinds),
        sites=tuple(site for site in report.sites if site.kind in kinds),
        retainers=tuple(row for row in report.retainers if set(row.kinds) & set(kinds)),
    )


def _leaks_of(leaks: tuple[Leak, ...], kinds: tuple[str, ...]) -> tuple[Leak, ...]:
    return tuple(leak for leak in leaks if leak.tensor_kind is None or leak.tensor_kind in kinds)


def above(report: Report, threshold_nbytes: int) -> Report:
    """Return the report with its leaks of fewer bytes listed as suppressed."""
    leaks = tuple(leak for leak in report.leaks if leak.nbytes + leak.graph_nbytes >= threshold_nbytes)
    small = [leak for leak in report.leaks if leak.nbytes + leak.graph_nbytes < threshold_nbytes]
    if not small:
        return report
    reason = f"smaller than the threshold, {bytes_text(threshold_nbytes)}"
    return replace(
        report,
        leaks=leaks,
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, report.nbytes - sum(leak.nbytes for leak in small)),
        suppressed=(*report.suppressed, *(Suppressed(leak, reason) for leak in small)),
    )


# The report as text for a terminal.


_INDENT = " " * 5
_WORTH_SHOWING_NBYTES: Final = 1_000
"""Kept and left-over resources of fewer bytes are shown only with ``--all``."""
_AFTER_MEMORY_ERROR: Final = 5
"""So many lines are shown after an error for want of memory."""
_REPEATED_CHARACTERS: Final = 60
"""A longer remedy is written once; later leaks refer to it."""
_ROWS: Final = 10
"""So many rows of kept, undecided or left-over resources are shown without ``--all``."""
_CAUSES: Final = 3
"""So many causes are shown below the headline, of at least one part in so many of all bytes."""
_MEMORY_ERROR: Final = re.compile(r"[\w.]*(?:MemoryError|OutOfMemoryError)\b")
_LAST_INDEX: Final = re.compile(r"\[(?:-?\d+|'[^']*'|\.\.\.)\]$")
"""An index at the end of a chain, which is left out where it is of one of several resources."""


def text_of(report: Report, *, everything: bool = False) -> str:
    """Return the report as text: a headline with the verdict, then the leaks, worst first.

    It is just ``"no leaks"`` if there is nothing to report.

    Parameters
    ----------
    report : Report
        The report.
    everything : bool, default False
        Whether all kept and left-over resources are listed: also rows of less than 1 kB, and more
        than ten rows.
    """
    if report.verdict is None:
        return headline_of(report)
    lines = [*_ending_lines(report), headline_of(report)]
    lines += [f"{_INDENT}{row}" for row in _causes(report)]
    in_headline = _how_to_know(report, "they grow") if report.verdict == "undecided" else None
    lines += [f"undecided: {line}" for line in undecided_of(report) if in_headline is None or in_headline not in line]
    rows_of_all = (*report.leaks, *report.kept, *report.leftovers)
    has_scopes = any(leak.generation or any(name is not None for name in leak.scopes) for leak in rows_of_all)
    workers = {process.pid for process in report.processes if process.role == "worker"}
    # For each remedy, the number of the first leak with it.
    first_with: dict[str, int] = {}
    for number, leak in enumerate(report.leaks, 1):
        in_child = leak.kind != "worker" and leak.pid in workers
        lines += ["", *_leak_lines(number, leak, has_scopes=has_scopes, in_child=in_child)]
        if leak.remedy:
            first = first_with.setdefault(leak.remedy, number)
            as_before = first != number and len(leak.remedy) > _REPEATED_CHARACTERS
            lines.append(f"{_INDENT}do: {f'as for {first}' if as_before else leak.remedy}")
    # A line is in one list only: if some of its resources are undecided, all of them are.
    open_lines = {(leak.site, leak.pid) for leak in report.kept if leak.unjudged is not None}
    undecided: list[Leak] = [leak for leak in report.kept if (leak.site, leak.pid) in open_lines]
    kept = [leak for leak in report.kept if (leak.site, leak.pid) not in open_lines]
    for title, by, rows in (
        (f"undecided, {'held until freed' if _are_freed(undecided) else 'alive in the end'}:", "held by", undecided),
        ("no leak, held until freed:", "held by", [leak for leak in kept if leak.freed is not None]),
        ("no leak, alive in the end:", "kept by", [leak for leak in kept if leak.freed is None]),
        ("no leak, disposed or escaped, and only named by a left-over variable:", "named by", report.leftovers),
    ):
        worth = [leak for leak in rows if leak.nbytes + leak.graph_nbytes >= _WORTH_SHOWING_NBYTES]
        shown_rows = rows if everything else worth[:_ROWS]
        rest_nbytes = sum(leak.nbytes for leak in rows) - sum(leak.nbytes for leak in shown_rows)
        if shown_rows or rest_nbytes >= _WORTH_SHOWING_NBYTES:
            lines += ["", title]
            lines += [
                f"{_INDENT}{_what(leak)}, {_size(leak)}born at {_site(leak)}, {_freed(leak)}"
                f"{'holder' if leak.holder.startswith('not found') else by} {_in_a_graph(leak.holder)}"
                f"{' in a worker' if leak.pid in workers else ''}{f'; {leak.known}' if leak.known else ''}"
                for leak in shown_rows
            ]
            if len(rows) > len(shown_rows):
                more = _counted(len(rows) - len(shown_rows), "row")
                lines.append(f"{_INDENT}and {more} more, {bytes_text(rest_nbytes)} (--all lists them)")
    killed = {process.pid for process in report.processes if process.ended == "killed"}
    if any(leak.pid in killed for leak in report.leaks):
        what = (
            "1 process was killed: what it" if len(killed) == 1 else f"{len(killed):,} processes were killed: what they"
        )
        lines += ["", f"{what} had is told as it was last known"]
    own = [sample for sample in report.timeline.samples if sample.pid in (None, report.program.pid)]
    if report.leaks and own:
        last = own[-1]
        mapped = last.live_nbytes.get(MAPPED, 0)
        when = "now" if report.program.ended in ("running", "unfinished") else "at the end"
        in_use, cached = bytes_text(sum(last.live_nbytes.values()) - mapped), bytes_text(last.cached_nbytes)
        of_files = f"{bytes_text(mapped)} mapped from files or shared memory, " if mapped else ""
        lines += [
            "",
            f"memory {when}: {bytes_text(last.rss_nbytes)} resident, {in_use} in use by tensors, "
            f"{of_files}{cached} kept by allocators for later use",
        ]
    if report.suppressed:
        suppressed = report.suppressed if everything else report.suppressed[:_ROWS]
        lines += ["", "suppressed:"]
        lines += [f"{_INDENT}{_what(row.leak)} born at {_site(row.leak)}: {row.reason}" for row in suppressed]
        if left := len(report.suppressed) - len(suppressed):
            lines.append(f"{_INDENT}and {left:,} more (--all lists them)")
    if report.unused_suppressions:
        lines += ["", "suppressions that matched nothing:"]
        lines += [f"{_INDENT}{row.file}, number {row.index + 1}: {row.reason}" for row in report.unused_suppressions]
    if report.peak is not None:
        lines += ["", str(report.peak)]
    if report.no_peak is not None:
        lines += ["", f"no peak is told: {report.no_peak}"]
    return "\n".join(lines)


def headline_of(report: Report) -> str:
    """Return the line that says the verdict."""
    if report.verdict is None:
        return f"{undecided_of(report)[0]}: there is no verdict"
    if report.leaks:
        # The kind "alive" is a leak only where nothing may be alive: then it is no mere suspect.
        is_leak = report.verdict == "leaks" or any(leak.kind == "alive" for leak in report.leaks)
        noun = "leak" if is_leak else "suspect"
        counts: Counter[str] = Counter()
        for leak in report.leaks:
            if leak.tensor is not None:
                counts[noun_of(leak.tensor_kind)] += leak.count
        tensors = " and ".join(_counted(count, noun) for noun, count in sorted(counts.items()) if count)
        of_tensors = f", {tensors}" if tensors else ""
        nbytes = report.nbytes + sum(leak.nbytes for leak in report.leaks if leak.kind == "native")
        size = f", {bytes_text(nbytes)}" if nbytes or tensors else ""
        in_graphs = sum(leak.graph_nbytes for leak in report.leaks)
        if in_graphs > nbytes:
            size += f" and {bytes_text(in_graphs)} in graphs"
        return (
            f"{_counted(len(report.leaks), noun)}{of_tensors}{size}{_freed_of(report.leaks)}{_known_of(report.leaks)}"
        )
    head = "no leaks" if report.verdict == "clean" else "no leak found"
    freed = sorted((leak for leak in report.kept if leak.freed is not None), key=_order)
    alive = sorted((leak for leak in report.kept if leak.freed is None), key=_order)
    freed_nbytes = sum(leak.nbytes for leak in freed)
    there = [row for row in report.retainers if row.type and row.freed is None]
    parts: list[str] = []
    for state, rows, nbytes, retainers in (
        ("held until freed", freed, freed_nbytes, ()),
        ("alive in the end", alive, report.kept_nbytes - freed_nbytes, there),
    ):
        if rows and nbytes >= _WORTH_SHOWING_NBYTES:
            parts.append(f"{bytes_text(nbytes)} {state}: {_kept_in_few_words(rows, nbytes, retainers)}")
    if not parts:
        return head
    can_grow = any(leak.unjudged == "growth" for leak in report.kept)
    advice = f" ({_how_to_know(report, 'it grows')})" if can_grow else ""
    return f"{head}; {'; '.join(parts)}{advice}"


def _order(leak: Leak) -> tuple[bool, int]:
    # Lines that may grow come first, and then those with the most bytes.
    return leak.unjudged != "growth", -leak.nbytes


def _kept_in_few_words(rows: Sequence[Leak], nbytes: int, retainers: Sequence[Retainer]) -> str:
    size = bytes_text(nbytes)
    if retainers and 2 * retainers[0].nbytes >= nbytes > 2 * rows[0].nbytes:
        # Many lines made what one object holds.
        return str(retainers[0])
    # If the first row has nearly all bytes, its size is that of all and is not repeated.
    is_all = bytes_text(rows[0].nbytes) == size
    rest = [] if is_all else [leak for leak in rows[1:] if leak.nbytes >= _WORTH_SHOWING_NBYTES]
    small = len(rows) - 1 - len(rest)
    more = f" and {_counted(small, 'smaller line')}" if small else ""
    return f"{_largest([rows[0], *rest], are_all=is_all)}{more}"


def _are_freed(leaks: Sequence[Leak]) -> bool:
    return bool(leaks) and all(leak.freed is not None for leak in leaks)


def _freed_of(leaks: Sequence[Leak]) -> str:
    """Return the end of the headline that says how much of some leaks was freed in the end."""
    freed = [leak for leak in leaks if leak.freed is not None]
    if not freed:
        return ""
    part = "all" if len(freed) == len(leaks) else f"{bytes_text(sum(leak.nbytes for leak in freed))} of it"
    return f", {part} freed in the end"


def _causes(report: Report) -> list[Retainer]:
    """Return the objects that retain most of the leaks, where they say more than the leaks.

    They do where one object retains several leaks, or where a line adds to it that made no leak.
    """
    lines = {(leak.pid, leak.site) for leak in report.leaks}
    places = {(pid, site.file, site.line) for pid, site in lines if site is not None}
    found: list[Retainer] = []
    for row in report.retainers:
        if not row.type or not row.sites or (row.pid, row.sites[0]) not in lines:
            continue
        grown_at = row.grown_at
        adds_elsewhere = grown_at is not None and (row.pid, grown_at.file, grown_at.line) not in places
        has_several_leaks = sum((row.pid, site) in lines for site in row.sites) > 1
        if (adds_elsewhere or has_several_leaks) and row.nbytes * _CAUSES >= report.nbytes:
            found.append(row)
    return found[:_CAUSES]


def _known_of(leaks: Sequence[Leak]) -> str:
    """Return the end of the headline that says how many leaks are known leaks of libraries."""
    libraries = [leak.known.library for leak in leaks if leak.known is not None]
    return f" ({len(libraries)} known of {', '.join(dict.fromkeys(libraries))})" if libraries else ""


def _ending_lines(report: Report) -> list[str]:
    """Return the lines above the headline for a program that did not end well."""
    program = report.program
    if program.ended in ("exit", "os._exit") and program.status:
        return [f"the program ended with status {program.status}"]
    if program.ended == "interrupt":
        return ["the program was ended by Ctrl-C"]
    if program.ended == "terminated":
        return ["the program was ended by SIGTERM"]
    if program.ended != "exception":
        return []
    lines = [f"the program ended by {program.error or 'an exception'}"]
    if program.error is not None and _MEMORY_ERROR.match(program.error):
        rows = sorted((*report.leaks, *report.kept), key=lambda leak: -leak.nbytes)
        lines += [f"alive then, the largest first: {_largest(rows, _AFTER_MEMORY_ERROR)}"] if rows else []
    return lines


def _largest(rows: Sequence[Leak], at_most: int = 3, *, are_all: bool = True) -> str:
    """Return the first rows in few words, each with its size unless it is the only row of all."""
    is_sized = len(rows) > 1 or not are_all
    shown = [
        f"{bytes_text(leak.nbytes)}: {_in_few_words(leak)}" if is_sized else _in_few_words(leak)
        for leak in rows[:at_most]
    ]
    more = len(rows) - at_most
    return ", ".join(shown) + (f" and {_counted(more, 'more line')}" if more > 0 else "")


def _in_few_words(leak: Leak) -> str:
    site = "an unknown line" if leak.site is None else f"{shown(leak.site.file)}:{leak.site.line}"
    text = f"{leak.count:,} × {site}" if leak.made is None else f"{leak.count:,} of {leak.made:,} × {site}"
    if leak.kind == "cycle":
        text += " in a cycle, until the next gc.collect()"
    elif leak.holders and not leak.holder.startswith("not found"):
        holder = _in_a_graph(leak.holder.removeprefix("module __main__."))
        text += f" held by {_LAST_INDEX.sub('', holder) if leak.count > 1 else holder}"
    if leak.freed is not None:
        return f"{text}, freed {leak.freed}"
    return f"{text}, none ever released" if leak.unjudged == "growth" and leak.made is None else text


def held_by(leak: Leak) -> list[str]:
    """Return what holds a leak: the tensors whose graphs have it first, then chains."""
    steps = ""
    if leak.trend is not None and leak.trend.over == "passes":
        steps = f" ({_counted(leak.trend.passes, 'step')})"
    tensors = [carrier.removesuffix(".grad_fn") for carrier in leak.carriers]
    # A chain through the nodes of a graph that is named already says nothing more.
    passed_over = tuple(f"{tensor}.grad_fn." for tensor in tensors)
    chains = [text for text in leak.holders if not text.startswith(passed_over)]
    return [*(f"the graph of {tensor}{steps}" for tensor in tensors), *chains]


def _in_a_graph(holder: str) -> str:
    """Return a chain of holders without the part of it that leads through an autograd graph."""
    tensor, graph, _ = holder.partition(".grad_fn.")
    return f"the graph of {tensor}" if graph else holder


def _leak_lines(number: int, leak: Leak, *, has_scopes: bool, in_child: bool) -> list[str]:
    lines = [f"{number:>3}. {_headline(leak, in_child=in_child)}"]
    if leak.tensor is not None:
        made = "" if leak.op is None else f" by {leak.op}"
        scopes = f", {_scopes(leak)}" if has_scopes else ""
        lines.append(f"{_INDENT}born at {_site(leak)}{made}{scopes}{_age(leak, has_scopes=has_scopes)}")
    elif leak.site is not None:
        lines.append(f"{_INDENT}opened at {_site(leak)}{_age(leak, has_scopes=True)}")
    lines += [f"{_INDENT}called from {frame}" for frame in leak.frames[1:]]
    if leak.disposal is not None:
        disposals = {str(record.disposal) for record in leak.records if record.disposal is not None}
        more = f" and {len(disposals) - 1} more" if len(disposals) > 1 else ""
        lines.append(f"{_INDENT}disposed at {leak.disposal}{more}")
    if leak.kind == "view":
        lines.append(f"{_INDENT}view: {bytes_text(leak.used_nbytes)} used, {bytes_text(leak.nbytes)} pinned")
    if leak.device == MAPPED:
        lines.append(
            f"{_INDENT}mapped from a file or shared memory: of its own the process has only pages that it changed"
        )
    if leak.freed is not None and leak.trend is not None and leak.trend.over == "passes":
        grown = f"{_counted(leak.count, noun_of(leak.tensor_kind))} and {bytes_text(leak.nbytes)}"
        lines.append(f"{_INDENT}grew to {grown} over {leak.trend.passes} steps, freed {leak.freed}")
    if leak.trend is not None and leak.trend.replaced:
        end = "" if leak.freed is None else f", freed {leak.freed}"
        before = "the one before" if leak.trend.replaced == 1 else f"one of {leak.trend.replaced}"
        how = f"each of {leak.trend.passes:,} that this line made replaces {before}, and has more"
        if leak.trend.passes == 1:
            is_model = noun_of(leak.tensor_kind) == "model"
            how = "its tensors become larger and larger" if is_model else "it is resized again and again"
        lines.append(f"{_INDENT}grew to {bytes_text(leak.nbytes)}: {how}{end}")
    elif leak.trend is not None and leak.trend.over == "births":
        # An expression makes others on the way to its result.
        passing = " (temporaries included)" if leak.count < leak.trend.passes else ""
        of_line = f"{leak.count:,} of {leak.trend.passes:,} that this line made{passing}"
        grown = f"grew to {bytes_text(leak.nbytes)}, {of_line}, freed {leak.freed}"
        lines.append(f"{_INDENT}{of_line} are alive" if leak.freed is None else f"{_INDENT}{grown}")
    elif leak.trend is not None:
        trend = leak.trend
        rate = _rate(trend.count_per_pass)
        tensors = "" if leak.tensor is None or rate == "0" else f"{rate} and "
        lines.append(
            f"{_INDENT}grows by {tensors}{bytes_text(round(trend.nbytes_per_pass))} per pass, "
            f"over {trend.passes} passes"
        )
    if leak.kind == "graph" and leak.trend is None and not leak.carriers:
        lines.append(f"{_INDENT}{_sentence(leak)}")
    lines += [
        f"{_INDENT}holder {text}" if text.startswith("not found") else f"{_INDENT}held by {text}"
        for text in held_by(leak)
    ]
    if leak.known is not None:
        lines.append(f"{_INDENT}{leak.known}")
    return lines


def _headline(leak: Leak, *, in_child: bool) -> str:
    kind = f"{leak.kind} ({leak.sure})"
    if leak.rank is not None:
        kind += f" on rank {leak.rank}"
    elif in_child and leak.tensor is not None:
        kind += " in a child process"
    if leak.tensor is None:
        several = leak.kind == "native" and leak.count > 1
        of_all = f", {leak.count:,} processes, {bytes_text(leak.nbytes)}" if several else ""
        return f"{kind}{of_all}: {_sentence(leak)}"
    state = "" if leak.state == "alive" else ", disposed under a live reference"
    if leak.freed is not None:
        state = f", freed {leak.freed}"
    return f"{kind}: {_what(leak)}, {size_of(leak)}{state}"


def size_of(leak: Leak) -> str:
    """Return the bytes of a leak as text, with those of the graphs behind it."""
    if not leak.graph_nbytes:
        return bytes_text(leak.nbytes)
    graphs = "a graph" if leak.kind == "graph" or leak.count == 1 else "graphs"
    return f"{bytes_text(leak.nbytes)} and {graphs} of {bytes_text(leak.graph_nbytes)}"


def _sentence(leak: Leak) -> str:
    """Return the explanation of a leak without its remedy."""
    return leak.explanation.partition(f": {leak.remedy}.")[0] if leak.remedy else leak.explanation


def _rate(per_pass: float) -> str:
    return f"{per_pass:.2f}".rstrip("0").rstrip(".")


def _what(leak: Leak) -> str:
    """Return the number of resources of a leak, and kind, dtype and shape of the oldest."""
    described = dict.fromkeys(str(record) for record in leak.records)
    more = f" and {_counted(len(described) - 1, 'other shape')}" if len(described) > 1 else ""
    return f"{leak.count:,} × {leak.tensor}{more}"


def _freed(leak: Leak) -> str:
    return "" if leak.freed is None else f"freed {leak.freed}, "


def _size(leak: Leak) -> str:
    return "" if leak.state == "disposed" else f"{size_of(leak)}, "


def _site(leak: Leak) -> str:
    return "an unknown site" if leak.site is None else str(leak.site)


def _scopes(leak: Leak) -> str:
    names = list(leak.scopes)
    if names in ([], [None]):
        return "outside every scope"
    rows = [
        "outside every scope" if name is None else repr(name) if name else "a scope without a name"
        for name in names[:3]
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    prefix = "in scope " if names[0] else "in "
    return f"{prefix}{', '.join(rows)}{more}"


def _age(leak: Leak, *, has_scopes: bool) -> str:
    if leak.oldest_age_s is None or leak.generation is None:
        return ""
    scopes = f" and {_counted(leak.generation, 'closed scope')}" if has_scopes else ""
    return f", {leak.oldest_age_s:.1f} s{scopes} ago"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
