"""The report of what a program had when its code returned, and of what grew while it ran.

Joining threads and running exit functions frees what ``weakref.finalize``, ``atexit``, thread
locals and JAX's caches hold. So the report is made before, and what threads make later is added.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from statistics import median
from textwrap import shorten
from types import FrameType
from typing import Final, final
from weakref import ref

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import Role, Site, is_in_comprehension, is_inside, is_of_the_program, role_of
from ...scopes.framework import only_records
from ..births.log import LOG, SiteRow, complete_log, innermost_line
from ..holders.holders import NOT_FOUND
from ..holders.origins import Chain, Holder, chain_of
from ..report.leaks import Leak, Sureness, Trend, bare_leak, fingerprint_of
from ..report.report import Report
from ..report.retainer import Retainer, noun_of
from ..report.timeline import STEP, UNASKED
from ..verdicts.growth import (
    BIRTHS_AT_LEAST,
    EPOCHS,
    MADE_FOR_ONE,
    MODELS,
    NEVER_RELEASED,
    PASSES_AT_LEAST,
    STOPPED,
    Point,
    are_few_and_large,
    becomes_larger_alone,
    began_lately,
    course_over_births,
    has_levels,
    is_of_phase,
    joins,
    most_held,
    phase_after_passes,
    rises,
    trend_of,
    trend_over_births,
    was_gathered,
)
from ..verdicts.verdicts import WORTH_NBYTES

__all__ = [
    "AFTER_EXIT",
    "AFTER_THREADS",
    "Growing",
    "Inventory",
    "one_line",
]

AFTER_THREADS: Final = "when its threads had ended"
AFTER_EXIT: Final = "by exit functions"
_OF_EXIT: Final = "not found: code of an extension, such as the arguments of atexit.register"
_OF_AN_EXIT_FUNCTION: Final = (
    "call atexit.unregister() when it has done its work, or have the exit function refer to it by weakref.ref"
)
_FOR_MODELS: Final = ("backward", "step")
"""Calls that make the gradients of models and the state of optimizers."""
_NOT_SEEN: Final = "not found: freed before it was searched for"
_UNKNOWN_END: Final = "before the program ended"
_WITH_THE_EXCEPTION: Final = "with the exception that ended the program"
_KINDS_LOOKED_AT_AGAIN: Final = ("scope", "suspended")
"""Kinds of leak that are looked for again when more has run: a thread may close its scope."""

_KINDS_THAT_GROW: Final = ("growth", "graph", "view", "escaped", "exception", "model")
"""Kinds of leak that are taken from a report made while the program runs."""
_LAST_PASS_AFTER: Final = 0.5
"""The passes of a name count if the last one ended after this share of the births of the run."""
_NEARLY: Final = 0.9
"""What a phase made stayed if so much of it did, for so much of the run."""
_AFTER_THE_LAST_PASS: Final = 1.5
"""A line may have so many times as many as at the end of a pass: a program makes some after it."""
_UNTIL_LATE: Final = 0.6
"""The last look at a program with passes lies behind two thirds of them."""
_BETWEEN_LOOKS: Final = 0.04
"""Looks at a model are compared if at least this share of all births lies between them."""
_LATER: Final = 1.02
"""The size of a model is kept if there were so many times as many births as at the last one."""
_RATES: Final = 2
"""A model that grows was seen to grow between so many pairs of looks at least, after the first."""
_EVENLY: Final = 1.6
"""Between all pairs of looks it grows at most so many times as fast, or as slowly, as typically."""
_JOINED_MORE: Final = 1.2
"""A model may have grown where a line joined so many times as much as at the last look."""
_WORTH_A_LOOK_NBYTES: Final = 4_096
"""Lines with fewer live bytes are not looked at while the program runs."""
_NBYTES_OF_ONE: Final = 64
"""A result counts as so many bytes at least: an allocator gives out no less, and a number may have
a large graph.
"""
_MESSAGE_CHARACTERS: Final = 200
"""The message of an internal error is cut after so many characters."""
_LEAKS: Final = __name__.removesuffix(".running.inventory")
_OUR_MODULES: Final = (f"{_LEAKS}.running.", f"{_LEAKS}.commands.")
"""Modules of this package that run the program, and so are always on the stack."""

_Line = tuple[Site | None, str, str | None]
"""Line, kind and call: results of two calls on one line may have different holders."""
_Sites = Sequence[tuple[int, SiteRow]]
"""The numbers of the sites of a line in the log, and their rows."""


@final
class _Lines:
    """The lines in the log of births as they are now: each site of the log is read once.

    Attributes
    ----------
    passes : dict
        How many passes of each name there were.
    rows : list of SiteRow
        The rows of the sites, by their numbers.
    """

    __slots__ = ("_answers", "_latest", "_sites", "passes", "rows")

    def __init__(self) -> None:
        log = complete_log()
        self.passes = log.passes()
        self.rows = [log.site(number) for number in range(log.site_count())]
        self._sites: dict[_Line, list[tuple[int, SiteRow]]] = {}
        for number, row in enumerate(self.rows):
            self._sites.setdefault((innermost_line(row), row.kind, row.op), []).append((number, row))
        # The answers of `was_given_back` for a line and the names of some scopes.
        self._answers: dict[tuple[_Line, tuple[str | None, ...]], bool] = {}
        # For each function, by its qualified name, the number of the last birth in it.
        self._latest: dict[str, int] | None = None

    def __iter__(self) -> Iterator[tuple[_Line, _Sites]]:
        """Iterate over the lines, each with its sites."""
        return iter(self._sites.items())

    def sites_of(self, line: _Line) -> _Sites:
        """Return the sites of a line."""
        return self._sites.get(line, ())

    def live(self) -> dict[_Line, float]:
        """Return how many resources of each line live."""
        return {line: sum(row.live for _, row in sites) for line, sites in self}

    def made_of(self, line: _Line) -> int:
        """Return how many a line has made."""
        return sum(row.made for _, row in self.sites_of(line))

    def was_given_back(self, line: _Line, scopes: tuple[str | None, ...]) -> bool:
        """Return whether most of a line was gone whenever one of some scopes had ended.

        A scope releases what it owns, and a function that it runs what it holds: that is by design.
        """
        known = self._answers.get((line, scopes))
        if known is None:
            known = self._answers[line, scopes] = self._is_given_back(line, scopes)
        return known

    def _is_given_back(self, line: _Line, scopes: tuple[str | None, ...]) -> bool:
        names = {name for name in scopes if name and name in self.passes}
        if "" in scopes:
            # The passes of a scope without a name have the name of its line.
            names |= self.passes.keys() - UNASKED
        # A series has no points as long as nothing of the line lived at the end of a pass.
        return bool(names) and not any(
            2 * nbytes >= (row.held_nbytes or row.peak_nbytes)
            for number, row in self.sites_of(line)
            for name in names
            for _, _, nbytes in LOG.series(number, name)
        )

    def said_of(self, line: _Line, chain: Chain | None, end: str) -> str:
        """Return what a report says of when a line was freed, given when its holder goes by itself.

        If the function that held it went on to make others, the program has cleared it before.
        """
        if chain is None or chain.origin.kind != "frame":
            return end
        fall = max((row.last_birth_before_fall for _, row in self.sites_of(line)), default=0)
        return _UNKNOWN_END if 0 < fall < self._latest_births().get(chain.origin.owner, 0) else end

    def _latest_births(self) -> dict[str, int]:
        if self._latest is None:
            self._latest = {}
            for row in self.rows:
                if row.places:
                    function = row.places[0][0].co_qualname
                    self._latest[function] = max(row.last_birth, self._latest.get(function, 0))
        return self._latest

    def joined_at(self, nbytes: int) -> list[Site]:
        """Return the lines that joined arrays again and again, to half of some bytes or more."""
        enough = (row for row in self.rows if row.births >= BIRTHS_AT_LEAST and 2 * row.peak_nbytes >= nbytes)
        return [site for row in enough if joins(row) and (site := innermost_line(row)) is not None]

    def were_gathered(self, row: SiteRow, series: Sequence[Point], point: Point) -> bool:
        """Return whether the program put the results of a site together: see `was_gathered`.

        Parameters
        ----------
        row : SiteRow
            The row of the site.
        series : sequence of (int, int, int)
            The points of the site over the births of the program.
        point : (int, int, int)
            The one of them at which the site had its results.
        """
        _, count, nbytes = point
        if not count:
            return False
        # The size of the largest is not known any more: take twice the mean. A few may have been
        # made between this point and the next.
        steps = [after - before for (*_, before), (*_, after) in pairwise(series)]
        return was_gathered(nbytes, max(2 * nbytes / count, *steps, 0), row.last_birth, self.rows)


@final
class Inventory:
    """The report of a program whose code has returned, kept up to date until its process ends.

    Parameters
    ----------
    report : callable
        Makes a report of what is there now.

    Attributes
    ----------
    report : Report
        The report.
    """

    __slots__ = ("_births", "_live", "_make", "report")

    def __init__(self, report: Callable[[], Report]) -> None:
        self._make = report
        self._births, self._live = _births(), _live_by_line()
        self.report = report()

    def go_on(self, when: str) -> None:
        """Mark leaks that are gone as freed, and add those that were made since.

        Parameters
        ----------
        when : str
            When leaks were freed, in the words of a report: `AFTER_THREADS` or `AFTER_EXIT`.
        """
        births, before, self._live = _births(), self._live, _live_by_line()
        # The collector may have run: what held the rest of the line is still there then.
        in_cycles: Counter[_Line] = Counter()
        for each in (*self.report.leaks, *self.report.kept):
            in_cycles[_line_of(each)] += each.count * (each.kind == "cycle")
        gone = {
            line
            for line, count in before.items()
            for lost in (count - self._live.get(line, 0),)
            if 2 * lost >= count and (not count or lost > in_cycles[line])
        }
        leaks, kept = (
            [_marked_freed(leak, when) if _line_of(leak) in gone else leak for leak in rows]
            for rows in (self.report.leaks, self.report.kept)
        )
        if when == AFTER_THREADS:
            # What nobody was found to hold was in a cycle, such as that of a class and its method.
            kept = [leak for leak in kept if leak.freed != when or leak.holders != (NOT_FOUND,)]
        stay = {line for line, count in before.items() if count and line not in gone}
        retainers = [
            replace(row, freed=when) if row.freed is None and _is_freed(row, gone, stay) else row
            for row in self.report.retainers
        ]
        self.report = replace(self.report, leaks=tuple(leaks), kept=tuple(kept), retainers=tuple(retainers))
        if births == self._births and not any(leak.kind in _KINDS_LOOKED_AT_AGAIN for leak in leaks):
            return
        self._births = births
        later = self._make()
        # Cycles are kept: the collector may have freed one merely because the first report ended.
        freed = [
            leak
            for leak in leaks
            if leak.kind == "cycle" or (leak.freed is not None and leak.kind not in _KINDS_LOOKED_AT_AGAIN)
        ]
        freed_lines = {(_line_of(leak), leak.kind == "cycle") for leak in freed}
        others = [leak for leak in later.leaks if (_line_of(leak), leak.kind == "cycle") not in freed_lines]
        found = sorted((*others, *freed), key=lambda leak: -leak.nbytes)
        lines = {_line_of(leak) for leak in found}
        held = [leak for leak in _not_of(lines, kept) if leak.freed is not None]
        lines |= {_line_of(leak) for leak in held}
        still_held = _not_of(lines, later.kept)
        self.report = replace(
            later,
            leaks=tuple(found),
            count=sum(leak.count for leak in found),
            nbytes=later.nbytes + _nbytes_of(freed) - (_nbytes_of(later.leaks) - _nbytes_of(others)),
            kept=tuple(sorted((*still_held, *held), key=lambda leak: -leak.nbytes)),
            kept_nbytes=later.kept_nbytes + _nbytes_of(held) - (_nbytes_of(later.kept) - _nbytes_of(still_held)),
            leftovers=tuple(_not_of(lines, later.leftovers)),
            retainers=_merged(later.retainers, [row for row in retainers if row.freed is not None]),
        )


@final
class _Look:
    """Exists as long as a report is being made while the program runs: a "look"."""

    __slots__ = ("__weakref__",)


def _no_look() -> None:
    """Return None, as a weak reference to a look that has ended does."""


@final
class Growing:
    """Keeps what grew while a program ran, with its holders, in case it is freed in the end.

    It makes a report, which is called a look, at passes 16, 24, 36 and so on, each half as far
    again as the one before, so that looks cost little. In a program without passes it looks at
    births, at first each a quarter further on than the one before, if a line has grown until then
    or a few large results of it stay. In a program with passes it does so where there is much more
    memory.

    Lines that grew until the last passes of the run, and were then freed because a function
    returned or a thread ended, are reported. What a scope gives back, what the program clears, and
    what was freed in an earlier phase is by design. Where the holder was not found, such as a
    finalizer of an object that is gone, the program may have cleared it: that is possible growth.

    A graph that reaches over many steps of an optimizer, such as that of a sum of losses, is never
    by design: no ``backward()`` can go through it, because the parameters have changed. It is
    reported also where each epoch frees its own, with what the graph keeps.

    Parameters
    ----------
    report : callable
        Makes a report of what is there now, by a short search.
    """

    __slots__ = (
        "_failure",
        "_graphs",
        "_grown",
        "_held",
        "_last",
        "_look",
        "_make",
        "_models",
        "_next",
        "_outermost",
        "_peaks",
        "_seen",
        "_undecided",
    )

    def __init__(self, report: Callable[[], Report]) -> None:
        self._make = report
        # Lines that grew, with the objects that retained their memory, as last seen, and how many
        # of the line lived then.
        self._grown: dict[_Line, tuple[Leak, Sequence[Retainer], float]] = {}
        # Lines that may grow, as last seen, and how many of the line lived then.
        self._undecided: dict[_Line, tuple[Leak, float]] = {}
        # For each line with a known holder, what was held of it when it was seen last, and how many
        # of the line lived then.
        self._held: dict[_Line, tuple[Leak, float]] = {}
        # Lines of which a look has seen so many results that it has judged them.
        self._seen: set[_Line] = set()
        # Lines of graphs over many steps, and of tensors with such graphs, at their most bytes.
        self._graphs: dict[_Line, Leak] = {}
        # For each line with one model: that, how many the line has made, and the bytes of the model
        # at some births of the program.
        self._models: dict[_Line, tuple[Leak, int, list[tuple[int, int]]]] = {}
        # Of lines that join tensors for models, the most bytes at once when it was looked last.
        self._peaks: dict[int, int] = {}
        # For each name of passes, the number of the last birth at the end of the last pass.
        self._last: dict[str, int] = {}
        # For each name of passes, the number of the pass of the next look.
        self._next: dict[str, int] = {}
        self._look: Callable[[], _Look | None] = _no_look
        # The name of the outermost function at the last look by a thread of the program.
        self._outermost = ""
        self._failure: str | None = None

    def passed(self, name: str, count: int) -> None:
        """Record the end of a pass, and look at what grows if a look is due at its number."""
        self._last[name] = LOG.counts()[0]
        if count >= self._next.get(name, PASSES_AT_LEAST) and self.look():
            self._next[name] = count + count // 2

    def born(self, *, has_more: bool) -> bool | None:
        """Look at what grows between passes, or without any. Return whether this place allowed it.

        None where the passes are enough to look at.

        Parameters
        ----------
        has_more : bool
            Whether there is much more memory than before.
        """
        # Not inside of this package, whose code may hold a lock.
        return not _is_in_our_code() and self.born_beside(has_more=has_more)

    def born_beside(self, *, has_more: bool) -> bool | None:
        """Do what `born` does on a thread of this package, while the main thread waits."""
        if self._look() is not None:
            return False
        phase = phase_after_passes(LOG.counts()[0])
        has_passes = any(times >= PASSES_AT_LEAST for times in LOG.passes().values())
        if has_passes and not phase and not has_more:
            return None
        if not _grows(phase, has_more=has_more) and (phase or has_passes or not self._models_may_grow()):
            return True
        return self.look()

    def look_at(self, report: Report, births: int, live: Mapping[_Line, float]) -> None:
        """Take what grows from a report of what is there now.

        Also from the reports that are written now and then: while the main thread waits for other
        threads there are no others.

        Parameters
        ----------
        report : Report
            The report.
        births : int
            How many births there were when it was begun.
        live : mapping
            How many of each line lived then: threads of the program may go on meanwhile.
        """
        self._seen.update(line for line, count in live.items() if count >= EPOCHS)
        self._seen.update(
            _line_of(leak) for leak in (*report.leaks, *report.kept) if are_few_and_large(leak.count, leak.nbytes)
        )

        # When a look happens depends on the machine. So lines that it does not find any more are
        # kept, and are judged at the end. The holders of a few results say nothing of the others,
        # such as of those in cycles.
        rows = [leak for leak in report.kept if chain_of(leak.holder) is not None]
        held: Counter[_Line] = Counter()
        for leak in rows:
            held[_line_of(leak)] += leak.count
        # Of each line the row with the most bytes comes last.
        for leak in sorted(rows, key=lambda leak: leak.nbytes):
            line = _line_of(leak)
            if held[line] * MADE_FOR_ONE < live.get(line, 0.0):
                continue
            self._held[line] = leak, live.get(line, 0.0)
            if leak.unjudged == "growth":
                self._undecided[line] = leak, live.get(line, 0.0)
        models = [
            leak for leak in (*report.leaks, *report.kept) if leak.count == 1 and noun_of(leak.tensor_kind) == "model"
        ]
        if models:
            self._take_sizes(models, births)
        is_long = any(_has_long_graph(leak) for leak in report.leaks)
        # The largest leak of each line: a graph may have saved more than the results that are kept.
        largest: dict[_Line, Leak] = {}
        for leak in report.leaks:
            if leak.kind not in _KINDS_THAT_GROW:
                continue
            line, chain = _line_of(leak), chain_of(leak.holder)
            if chain is None:
                # Another look finds the holder, where a function is returning just now. A list that
                # a comprehension is filling is no variable yet.
                if leak.trend is None:
                    continue
                if _fills_a_comprehension():
                    self._undecided[line] = replace(leak, unjudged="growth"), live.get(line, 0.0)
                else:
                    self._grown.setdefault(line, (leak, (), live.get(line, 0.0)))
                continue
            if chain.ends_at_self_of_init:
                continue
            if leak.trend is not None:
                if line not in largest or leak.nbytes > largest[line].nbytes:
                    largest[line] = leak
                    self._grown[line] = leak, _retainers_of(leak, report.retainers), live.get(line, 0.0)
            elif leak.kind in ("model", "view", "exception", "growth"):
                # They may be kept on purpose, such as models that main() averages in the end.
                # Exceptions come at random, which shows no trend; of growth there were few passes.
                leak_now = _alive(leak) if leak.kind == "growth" else leak
                self._undecided[line] = replace(leak_now, unjudged="growth"), live.get(line, 0.0)
            if leak.kind == "graph" and (is_long or (leak.trend is None and leak.carriers)):
                known = self._graphs.get(line, leak)
                self._graphs[line] = max(leak, known, key=lambda each: each.nbytes)

    def look(self) -> bool:
        """Look at what grows now, on a thread of the program.

        Return False, without a look, while another thread of the program does so.
        """
        if self._look() is not None:
            return False
        # This object ends with this frame, whatever ends the frame.
        look = _Look()
        self._look = ref(look)
        self._outermost = _outermost_function()
        self._look_at_report_of(self._make)
        return True

    def look_beside(self, make: Callable[[], Report]) -> None:
        """Look at what grows now, on a thread of this package, unless one of the program does so.

        A thread of the program does not wait for this look: the passes of its looks must not depend
        on the clock.

        Parameters
        ----------
        make : callable
            Makes the report.
        """
        if self._look() is not None:
            return
        LOG.report_begins()
        try:
            self._look_at_report_of(make)
        finally:
            LOG.report_ends()

    def _look_at_report_of(self, make: Callable[[], Report]) -> None:
        births, live = LOG.counts()[0], _live_by_line()
        try:
            self.look_at(make(), births, live)
        except Exception as error:
            # The program must go on.
            text = one_line(error)
            if self._failure is None:
                with suppress(OSError, ValueError):
                    print(f"leak-report: internal error: a look at what grows failed: {text}", file=sys.stderr)
            # Keep only the text: the traceback of the exception holds the variables of its frames.
            self._failure = text

    def unwatched(self) -> list[str]:
        """Return a sentence for the report if a look has failed: growth may have been missed."""
        return [] if self._failure is None else [f"what grew while the program ran: {self._failure}"]

    def freed(self, leaks: Iterable[Leak], kept: Iterable[Leak]) -> tuple[list[Leak], list[Retainer], list[Leak]]:
        """Return the lines that grew, or may have grown, and were freed.

        A line that only a cycle keeps until the next garbage collection counts as freed: that it
        grew tells more.

        Parameters
        ----------
        leaks, kept : iterable of Leak
            The leaks and the kept resources of the last report. Lines with a leak are left out.

        Returns
        -------
        grown : list of Leak
            The lines that grew.
        retainers : list of Retainer
            The objects that retained the memory of these lines.
        held : list of Leak
            Lines that did not, or that may have grown: their results stayed until they were freed.
        """
        births, lines = _births(), _Lines()
        live = lines.live()
        reported: dict[_Line, set[str]] = {}
        in_cycles = {_line_of(leak) for leak in kept if leak.kind == "cycle"}
        # Lines that nothing but the exception holds which ended the program count as freed too.
        in_exception = {_line_of(leak) for leak in kept if leak.kind == "exception"}
        for leak in leaks:
            reported.setdefault(_line_of(leak), set()).add(leak.kind)
        in_cycles -= reported.keys()
        live.update(dict.fromkeys(in_cycles | in_exception, 0.0))
        last_births = self._last.copy()
        # The names of passes that went on to the end of the run; None stands for births.
        names: list[str | None] = [name for name, last in last_births.items() if last >= _LAST_PASS_AFTER * births]
        with_enough_passes = [name for name, times in lines.passes.items() if times >= PASSES_AT_LEAST]
        names_are_no_loops = all(name in UNASKED for name in with_enough_passes)
        if not with_enough_passes:
            names = [None]
        phase = phase_after_passes(births)
        found: list[Leak] = []
        # For each object that retained lines, these lines when it was seen, and at the end.
        retained: dict[Retainer, list[tuple[Leak, Leak]]] = {}
        for line, (leak, retainers, then) in self._grown.copy().items():
            chain, kinds = chain_of(leak.holder), reported.get(line, set())
            end, sites = _end_of(chain), lines.sites_of(line)
            if lines.was_given_back(line, leak.scopes):
                continue
            if end is None or not kinds <= (set[str]() if chain is None else {"cycle"}):
                continue
            if chain is None and line in in_cycles:
                # Nobody held it but the cycle: the collector had not run yet.
                continue
            if leak.kind == "graph" and not with_enough_passes and self._was_used(sites) is not False:
                continue
            numbers = [number for number, _ in sites]
            # At the last birth it has been freed.
            courses = [[point for point in LOG.series(number, None) if point[0] < births] for number in numbers]
            earlier = [
                name for name in last_births if name not in names and _stayed(courses, last_births[name], births)
            ]
            of_phase = bool(phase) and any(is_of_phase(number, phase) for number in numbers)
            for name in (None,) if of_phase else (*names, *earlier):
                living = 0.0 if kinds else live.get(line, 0.0)
                of_sites = [
                    _trend_until_the_end(lines, each, name, living, phase if of_phase else 0) for each in numbers
                ]
                trends = [each for each in of_sites if each is not None]
                if not trends:
                    continue
                said = lines.said_of(line, chain, end)
                if name in earlier and chain is not None and chain.origin.owner != self._outermost:
                    # The function had returned, and left it to another one.
                    said = _UNKNOWN_END
                if line in in_exception:
                    said = _WITH_THE_EXCEPTION
                found.append(_grown_leak(leak, trends, then, end, said, in_a_cycle=bool(kinds) or line in in_cycles))
                for retainer in retainers:
                    retained.setdefault(retainer, []).append((leak, found[-1]))
                break
        known = reported.keys() | {_line_of(leak) for leak in found}
        for line, leak in self._graphs.copy().items():
            chain = chain_of(leak.holder)
            end = _end_of(chain)
            if line not in known and end is not None and not lines.was_given_back(line, leak.scopes):
                found.append(_freed_graph_leak(leak, end, lines.said_of(line, chain, end)))
        grown = [*self._grown_models(kept, births, lines)]
        joined = {site for leak in grown for site in lines.joined_at(leak.nbytes)}
        # Between the call that joins and the assignment nobody holds what a model has next.
        found = [leak for leak in found if not (leak.site in joined and chain_of(leak.holder) is None)]
        found += grown
        known |= {_line_of(leak) for leak in found}
        # These grew at a look, but not to the end. The program may have read all graphs once in the
        # end, and exceptions come at random.
        not_to_the_end = {
            line: (replace(_alive(leak) if leak.kind == "growth" else leak, unjudged="growth"), then)
            for line, (leak, _, then) in self._grown.copy().items()
            if leak.kind == "exception"
            or (leak.kind == "growth" and chain_of(leak.holder) is not None)
            or (leak.kind == "graph" and not self._was_used(lines.sites_of(line)))
        }
        undecided = [
            leak
            for line, (leak, then) in (not_to_the_end | self._undecided.copy()).items()
            if line not in known and (end := _end_of(chain_of(leak.holder))) is not None
            if not lines.was_given_back(line, leak.scopes)
            for of_phase in (bool(phase) and any(is_of_phase(number, phase) for number, _ in lines.sites_of(line)),)
            if names_are_no_loops or of_phase
            for leak in _undecided_at_the_end(
                lines,
                leak,
                then,
                lines.said_of(line, chain_of(leak.holder), end),
                births,
                live.get(line, 0.0),
                () if of_phase else with_enough_passes,
                phase * of_phase,
            )
        ]
        known |= {_line_of(leak) for leak in (*kept, *undecided)}
        undecided += [leak for leak in self._unseen(births, lines, live) if _line_of(leak) not in known]
        known |= {_line_of(leak) for leak in undecided}
        held = [
            leak
            for line, (seen, then) in (not_to_the_end | self._held.copy()).items()
            for chain in (chain_of(seen.holder),)
            if line not in known and (end := _end_of(chain)) not in (None, _UNKNOWN_END)
            if not lines.was_given_back(line, seen.scopes)
            for leak in _held_to_the_end(
                lines, seen, then, lines.said_of(line, chain, end), births, live.get(line, 0.0)
            )
        ]
        return found, [_at_the_end(retainer, seen) for retainer, seen in retained.items()], [*undecided, *held]

    def _unseen(self, births: int, lines: _Lines, live: Mapping[_Line, float]) -> Iterator[Leak]:
        """Yield lines whose results stayed until they were freed, and that no look has seen.

        Such as those of a `main()` that makes little else: no look was due until it returned. What
        a scope or a comprehension had is by design. Parameters and gradients belong to models.
        """
        scopes = tuple(name for name in lines.passes if name not in UNASKED)
        of_models = {site for (site, kind, _), _ in lines if noun_of(kind) == "model"}
        for line, sites in lines:
            if line in self._seen or line[0] in of_models or line[2] in _FOR_MODELS:
                continue
            rows = [row for _, row in sites]
            first, last = min(row.first_birth for row in rows), max(row.last_birth for row in rows)
            # Few programs have a line of which this is true.
            if last - first < STOPPED * births or sum(row.peak_nbytes for row in rows) < WORTH_NBYTES:
                continue
            place = rows[0].places[0] if rows[0].places else None
            if place is None or role_of(place[0]) is not Role.USER:
                continue
            if lines.was_given_back(line, scopes):
                continue
            for leak in _undecided_at_the_end(
                lines, _unseen_leak(line, rows), 0.0, _UNKNOWN_END, births, live[line], (), 0
            ):
                if leak.count >= EPOCHS and not is_in_comprehension(*place):
                    yield leak

    def _take_sizes(self, leaks: Iterable[Leak], births: int) -> None:
        """Take the bytes of models at a look; of one that replaced another, from now on."""
        lines = _Lines()
        for leak in leaks:
            line = _line_of(leak)
            made = lines.made_of(line)
            _, made_before, sizes = self._models.get(line, (leak, made, []))
            if made != made_before:
                sizes = []
            if not sizes or births >= _LATER * sizes[-1][0]:
                sizes.append((births, leak.nbytes))
            self._models[line] = leak, made, sizes

    def _models_may_grow(self) -> bool:
        """Return whether a line joins more than at the last look.

        The log does not count the memory of models at the lines that made it.
        """
        may_grow = False
        for number in range(LOG.site_count()):
            row = LOG.site(number)
            if row.births < BIRTHS_AT_LEAST or row.peak_nbytes < WORTH_NBYTES or not joins(row):
                continue
            if row.peak_nbytes > _JOINED_MORE * self._peaks.get(number, 0):
                self._peaks[number] = row.peak_nbytes
                may_grow = True
        return may_grow

    def _grown_models(self, kept: Iterable[Leak], births: int, lines: _Lines) -> Iterator[Leak]:
        """Yield the models whose tensors became larger and larger, such as a queue in a buffer."""
        at_the_end = {_line_of(leak): leak for leak in kept}
        for line, (leak, made, sizes) in self._models.copy().items():
            if made != lines.made_of(line):
                # Another model has replaced it.
                continue
            last = at_the_end.get(line)
            if last is not None:
                sizes, leak, end = [*sizes, (births, last.nbytes)], last, None
            else:
                end = _end_of(chain_of(leak.holder))
                if end is None:
                    continue
            joined = lines.joined_at(sizes[-1][1] - sizes[0][1])
            if joined and _grow_evenly(sizes, births):
                yield _grown_model_leak(leak, sizes, joined[0], end)

    def _was_used(self, sites: _Sites) -> bool | None:
        """Return whether memory of a line that a graph saved died before the last optimizer step.

        Then a ``backward()`` went through the graph, such as at the end of a long episode. None if
        a report may have held the memory until after the step.
        """
        died, held_since = max(((row.last_birth_before_death, row.held_since) for _, row in sites), default=(0, 0))
        step = self._last.get(STEP, 0)
        if 0 < died < step:
            return True
        return None if 0 < held_since < step else False


def one_line(error: Exception) -> str:
    """Return an error of this package in a line, without its traceback, which holds variables."""
    # Messages of PyTorch may have a whole tensor in them.
    return shorten(repr(error), _MESSAGE_CHARACTERS, placeholder=" ...")


def _outermost_function() -> str:
    """Return the name of the program's outermost function on this thread, or ``""``."""
    found = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name != "<module>" and is_of_the_program(str(frame.f_globals.get("__name__"))):
            found = frame.f_code.co_qualname
        frame = frame.f_back
    return found


def _is_in_our_code() -> bool:
    """Return whether code of this package is running on this thread.

    Code that runs the program, or only records births, does not count.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (
            is_inside(frame)
            and not str(frame.f_globals.get("__name__")).startswith(_OUR_MODULES)
            and not only_records(frame.f_code)
        ):
            return True
        frame = frame.f_back
    return False


def _fills_a_comprehension() -> bool:
    """Return whether a comprehension is running on a thread: its list is no variable yet."""
    frames = sys._current_frames()
    # Leave out this frame: a variable of it that refers to it would be a cycle, which only the
    # garbage collector frees.
    frame = frames.pop(threading.get_ident()).f_back
    for innermost in (frame, *frames.values()):
        frame = innermost
        while frame is not None:
            if not is_inside(frame) and is_in_comprehension(frame.f_code, frame.f_lasti):
                return True
            frame = frame.f_back
    return False


def _grows(phase: int, *, has_more: bool) -> bool:
    """Return whether a line of a program without passes grows, or may grow.

    Parameters
    ----------
    phase : int
        The number of the last birth in passes, if the program went on without any; or 0.
    has_more : bool
        Whether there is much more memory than at the last look. Then a line that keeps a third of
        its results is enough: if it began late it has too few points for a trend.
    """
    for number in range(LOG.site_count()):
        row = LOG.site(number)
        made, live, nbytes = row.made, row.live, row.nbytes
        if phase and not is_of_phase(number, phase):
            continue
        nbytes_at_least = max(nbytes, live * _NBYTES_OF_ONE)
        if live >= BIRTHS_AT_LEAST and nbytes_at_least >= _WORTH_A_LOOK_NBYTES:
            course = course_over_births(number, phase)
            if rises(course) or trend_over_births(course):
                return True
            if has_more and nbytes >= WORTH_NBYTES and live * MADE_FOR_ONE >= made:
                return True
        elif nbytes >= WORTH_NBYTES and (made == 1 or (row.births >= BIRTHS_AT_LEAST and joins(row))):
            course = course_over_births(number, phase)
            if has_levels(course) and trend_of(course):
                return True
        elif are_few_and_large(round(live), nbytes) and live >= NEVER_RELEASED * made:
            return True
    return False


def _trend_until_the_end(
    lines: _Lines, number: int, name: str | None, live: float, phase: int
) -> tuple[Trend, Point] | None:
    """Return how a site grew until it was freed, and its highest point; None if it did not grow.

    Parameters
    ----------
    lines : _Lines
        The lines in the log.
    number : int
        The number of the site.
    name : str or None
        The name of the passes; None for births.
    live : float
        How many of the line live now.
    phase : int
        The number of the last birth before the phase whose births count; 0 for all.
    """
    series = _until_freed(
        course_over_births(number, phase) if name is None else LOG.series(number, name), over_births=name is None
    )
    trend = trend_over_births(series) if name is None else trend_of(series)
    if trend is None or 2 * live > series[-1][1]:
        return None
    row = lines.rows[number]
    if name is not None:
        at, count, nbytes = max(trend.series, key=lambda point: point[1:])
        if count < row.held <= _AFTER_THE_LAST_PASS * count:
            count, nbytes = row.held, row.held_nbytes
        return None if becomes_larger_alone(trend, row) else (trend, (at, count, nbytes))
    made, (_, count, nbytes) = row.made, series[-1]
    if lines.were_gathered(row, series, series[-1]):
        return None
    trend = replace(trend, over="births", passes=made, count_per_pass=count / made, nbytes_per_pass=nbytes / made)
    number_of_birth, held, held_nbytes = most_held(series, row)
    # A scalar on the way to a result may have been there too.
    return trend, (number_of_birth, min(held, made), held_nbytes)


def _until_freed(series: Sequence[Point], *, over_births: bool) -> Sequence[Point]:
    """Return a series without its last point, or the last two births, if at these most was freed.

    They may be of a time after `main()` has returned.
    """
    are_births = over_births and len(series) > 2 and series[-1][0] - series[-2][0] == 1
    for left_out in (2, 1) if are_births else (1,):
        before = series[:-left_out]
        if before and 2 * max(count for _, count, _ in series[-left_out:]) < before[-1][1]:
            return before
    return series


def _stayed(courses: Iterable[Sequence[Point]], phase: int, births: int) -> bool:
    """Return whether what some sites had at the end of a phase was there until the end of the run.

    Parameters
    ----------
    courses : iterable of sequence
        For each site, its points over the births of the program, until it was freed.
    phase, births : int
        The number of the last birth of the phase, and of the run.
    """
    for series in courses:
        then = max((count for at, count, _ in series if at <= phase), default=0)
        later = [count for at, count, _ in series if at > phase]
        if then and later and series[-1][0] >= _NEARLY * births and min(later) >= _NEARLY * then:
            return True
    return False


def _undecided_at_the_end(
    lines: _Lines, leak: Leak, then: float, end: str, births: int, live: float, passes: Sequence[str], phase: int
) -> Iterator[Leak]:
    """Yield a leak with the most that a line had, if its results stayed until they were freed.

    Parameters
    ----------
    lines : _Lines
        The lines in the log.
    leak : Leak
        The line at the last look.
    then : float
        How many of the line lived then.
    end : str
        When it was freed, in the words of a report.
    births : int
        The number of the last birth of the program.
    live : float
        How many of the line live now.
    passes : sequence of str
        The names of passes of which there were enough.
    phase : int
        The number of the last birth before the phase whose births count; 0 for all.
    """
    births -= phase
    count = seen = nbytes = made = latest = 0
    first = births
    stays = is_late = rises_over_passes = False
    for number, row in lines.sites_of(_line_of(leak)):
        series = course_over_births(number, phase)
        highest = most_held(series, row) if series else (0, 0, 0)
        # A scalar on the way to a result may have been there too.
        count, nbytes = count + min(highest[1], row.made), nbytes + highest[2]
        # With what was on its way to be held.
        most = max((point[1] for point in series), default=0)
        at_peak = min(row.made, round(highest[1] * row.peak_nbytes / highest[2])) if highest[2] else most
        seen += at_peak
        # The first of the highest points: until then it grew. A full cache stays there.
        latest = max(latest, min((point[0] for point in series if point[1] >= min(most, highest[1])), default=0))
        first = min([first, *(point[0] for point in series if point[1])])
        if not passes:
            if lines.were_gathered(row, series, highest):
                return
            to_highest = [point for point in series if point[0] <= highest[0]]
            # The last result may have come after the last point.
            keeps = (highest[1] + 1) * MADE_FOR_ONE >= row.made
            stays = stays or rises(to_highest) or (keeps and rises(to_highest, EPOCHS))
            is_late = is_late or began_lately(to_highest)
        for course in (LOG.series(number, name) for name in passes):
            # Add the highest point: it may be later than the last pass.
            whole = [*course, (course[-1][0] + 1, at_peak, row.peak_nbytes)] if course else []
            stays = stays or rises(whole, EPOCHS if leak.carriers else BIRTHS_AT_LEAST)
            rises_over_passes = rises_over_passes or rises(whole)
        made += row.made
    is_model = not nbytes
    stays = stays or (is_late and count * MADE_FOR_ONE >= made)
    enough = leak.count >= MODELS if is_model else seen >= EPOCHS
    if passes and not (rises_over_passes or (enough and latest - first >= STOPPED * births)):
        # The same rule as for results that are not freed: `_Group._unjudged` in `classify`.
        return
    if is_model:
        # The log counts also the modules in models, and has no bytes for any of them.
        more = max(1.0, count / then) if then else 1.0
        made = round(made * leak.count * more / count) if count else leak.count
        count, nbytes = round(leak.count * more), round(leak.nbytes * more)
    held = _in_proportion(leak, count, nbytes)
    if nbytes + held.graph_nbytes < WORTH_NBYTES or 2 * live > count:
        return
    if (stays or count >= NEVER_RELEASED * made) and latest > STOPPED * births:
        yield replace(
            held,
            made=None if count >= NEVER_RELEASED * made else made,
            freed=end,
            explanation=_held_until(end) if leak.kind == "alive" else leak.explanation,
        )


def _held_to_the_end(lines: _Lines, leak: Leak, then: float, end: str, births: int, live: float) -> Iterator[Leak]:
    """Yield what a line had to the end of the run, when it was freed: no leak.

    The parameters are those of `_undecided_at_the_end`.
    """
    count = nbytes = 0
    for number, row in lines.sites_of(_line_of(leak)):
        series = _until_freed(LOG.series(number, None), over_births=True)
        # What is there only for a moment, such as the list of a batch, is not there at all points.
        late = [point for point in series if point[0] >= _NEARLY * births]
        if not late:
            continue
        _, held, held_nbytes = min(late, key=lambda point: point[1])
        highest = max(point[1] for point in series)
        if 2 * held >= highest == max(point[1] for point in late):
            # It became more until then.
            _, held, held_nbytes = most_held(series, row)
        count, nbytes = count + min(held, row.made), nbytes + held_nbytes
    is_model = not nbytes
    if is_model and then:
        # The log counts also the modules in models, and has no bytes for any of them.
        count, nbytes = round(leak.count * count / then), round(leak.nbytes * count / then)
    if count >= (MODELS if is_model else EPOCHS) and nbytes >= WORTH_NBYTES and 2 * live <= count:
        yield replace(
            _alive(_in_proportion(leak, count, nbytes)),
            made=None,
            unjudged=None,
            freed=end,
            explanation=_held_until(end),
        )


def _in_proportion(leak: Leak, count: int, nbytes: int) -> Leak:
    """Return a leak with another count and other bytes, and the rest of its bytes in proportion."""
    return replace(
        leak,
        count=count,
        nbytes=nbytes,
        used_nbytes=min(round(leak.used_nbytes / leak.count * count), nbytes),
        graph_nbytes=round(leak.graph_nbytes / leak.count * count),
    )


def _held_until(end: str) -> str:
    return f"It was held until it was freed {end}."


def _alive(leak: Leak) -> Leak:
    """Return a leak without what was said of its growth."""
    return replace(
        leak,
        kind="alive",
        sure="possible",
        trend=None,
        explanation="",
        remedy="",
        fingerprint=fingerprint_of("alive", leak.tensor_kind, leak.site, leak.op),
    )


def _unseen_leak(line: _Line, rows: Sequence[SiteRow]) -> Leak:
    """Return what is known of a line of which no look has seen a result: not who held it."""
    site, kind, op = line
    nbytes = sum(row.peak_nbytes for row in rows)
    leak = bare_leak("alive", "possible", nbytes, "", site=site, name=op, tensor_kind=kind)
    return replace(leak, device=rows[0].device, op=op, scopes=(None,), holders=(_NOT_SEEN,), unjudged="growth")


def _end_of(chain: Chain | None) -> str | None:
    """Return when a holder goes by itself, in the words of a report; None if it stays."""
    if chain is None:
        return _UNKNOWN_END
    if chain.is_of_a_thread:
        return "when its thread ended"
    if chain.is_of_a_key:
        return "when its keys went"
    origin = chain.origin
    if origin.kind == "finalizers":
        return "when the objects of the finalizers went"
    if origin.kind == "task" and chain.has_items:
        # Many tasks may share a container.
        return _UNKNOWN_END
    if origin.kind in ("task", "context of a task"):
        return "when its task ended"
    if origin.kind != "frame":
        return None
    # The coroutine that waits for this one may hold it as well, or whoever has asked for an object
    # that is being made.
    is_handed_on = origin.is_of_coroutine or (origin.variable == "self" and origin.owner.endswith(".__init__"))
    return _UNKNOWN_END if is_handed_on else f"when {origin.owner}() returned"


def _those_that_go(holders: Iterable[str], end: str) -> tuple[str, ...]:
    """Return those of some holders that go by themselves at an end, in the words of `_end_of`."""
    return tuple(holder for holder in holders if _end_of(chain_of(holder)) == end)


def _grown_leak(
    leak: Leak, sites: Sequence[tuple[Trend, Point]], then: float, end: str, said: str, *, in_a_cycle: bool
) -> Leak:
    """Return the leak of a line that grew and was freed, with the most that its sites had.

    `end` is that of its holders, and `said` is what a report says.
    """
    when = f"{said}, but for a cycle" if in_a_cycle else said
    trends = [trend for trend, _ in sites]
    count, nbytes = sum(point[1] for _, point in sites), sum(point[2] for _, point in sites)
    trend = replace(
        max(trends, key=lambda trend: trend.nbytes_per_pass),
        count_per_pass=sum(trend.count_per_pass for trend in trends),
        nbytes_per_pass=sum(trend.nbytes_per_pass for trend in trends),
    )
    if 0 < trend.replaced < count:
        # While they are joined, the array and the one before it are there.
        count, nbytes = trend.replaced, round(nbytes / count * trend.replaced)
    if not nbytes and leak.trend is not None:
        # The log counts also the modules in models, and has no bytes for any of them.
        more = max(1.0, count / then) if then else 1.0
        count, nbytes = round(leak.count * more), round(leak.nbytes * more)
        trend = leak.trend
        if trend.over == "births":
            trend = replace(trend, passes=max(count, round(trend.passes * more)))
    what = f"{count:,} {noun_of(leak.tensor_kind)}{'' if count == 1 else 's'} and {bytes_text(nbytes)}"
    if trend.over == "passes":
        what += f" over {trend.passes:,} steps"
    sure: Sureness = "likely" if leak.sure == "certain" else leak.sure
    is_found = chain_of(leak.holder) is not None
    held = _in_proportion(leak, count, nbytes)
    return replace(
        held,
        # Without a known holder it may be by design; and there is no holder left to search for.
        sure=sure if is_found else "possible",
        unjudged=leak.unjudged if is_found else None,
        graph_nbytes=leak.graph_nbytes if leak.kind == "graph" else held.graph_nbytes,
        trend=trend,
        freed=when,
        holders=_those_that_go(leak.holders, end),
        carriers=_those_that_go(leak.carriers, end),
        explanation=f"It grew to {what}, freed {when}: a longer run needs more. {leak.explanation}"
        if trend.over == "passes"
        else f"It grew to {what}, freed {when}: {leak.remedy}.",
    )


def _grow_evenly(sizes: Sequence[tuple[int, int]], births: int) -> bool:
    """Return whether the bytes of a model grew evenly, to the end, from one look to the next."""
    points: list[tuple[int, int]] = []
    for point in sorted(sizes):
        # Looks that follow each other at once show little.
        if not points or point[0] - points[-1][0] >= _BETWEEN_LOOKS * births:
            points.append(point)
    # The first gradients, and the state of optimizers, come besides.
    points = points[1:]
    rates = [(after - before) / (later - earlier) for (earlier, before), (later, after) in pairwise(points)]
    if len(rates) < _RATES or points[-1][0] < _UNTIL_LATE * births or points[-1][1] - points[0][1] < WORTH_NBYTES:
        return False
    typical = median(rates)
    return all(typical / _EVENLY <= rate <= typical * _EVENLY for rate in rates)


def _grown_model_leak(leak: Leak, sizes: Sequence[tuple[int, int]], joined: Site, end: str | None) -> Leak:
    """Return the leak of a model whose tensors grew, given a line that joins to them."""
    remedy = f"bound what is joined to its tensors at {joined}, or keep only the last part of it"
    what = f"Its tensors grew by {bytes_text(sizes[-1][1] - sizes[0][1])} over the run"
    return replace(
        leak,
        kind="growth",
        sure="possible",
        nbytes=sizes[-1][1],
        trend=Trend(
            passes=1,
            count_per_pass=1.0,
            nbytes_per_pass=float(sizes[-1][1]),
            first_pass=1,
            fit=1.0,
            series=tuple((number, 1, nbytes) for number, nbytes in sizes),
            over="births",
        ),
        freed=end,
        explanation=f"{what}: {remedy}.",
        remedy=remedy,
    )


def _has_long_graph(leak: Leak) -> bool:
    """Return whether a leak is a kept tensor whose graph reaches over many optimizer steps."""
    return leak.kind == "graph" and leak.sure == "certain" and leak.trend is None


def _freed_graph_leak(leak: Leak, end: str, said: str) -> Leak:
    """Return the leak of a line that graphs held until they were freed."""
    return replace(
        leak,
        sure="possible" if leak.sure == "possible" else "likely",
        freed=said,
        holders=_those_that_go(leak.holders, end),
        carriers=_those_that_go(leak.carriers, end),
        explanation=f"{leak.explanation} (It was freed {said}: more steps need more.)",
    )


def _retainers_of(leak: Leak, retainers: Iterable[Retainer]) -> list[Retainer]:
    """Return the objects that retain memory of a line, and that lead to its holders."""
    holders = [holder for holder in leak.holders if isinstance(holder, Holder)]
    return [
        row
        for row in retainers
        if leak.site in row.sites and any(holder.goes_on_from(row.holder) for holder in holders)
    ]


def _at_the_end(retainer: Retainer, lines: Sequence[tuple[Leak, Leak]]) -> Retainer:
    """Return an object that retained lines, with the bytes that it had at the end.

    It was seen earlier: at the end it has the same share of these lines as then.

    Parameters
    ----------
    retainer : Retainer
        The object when it was seen.
    lines : sequence of (Leak, Leak)
        The lines then, and at the end.
    """
    nbytes_then = sum(leak.nbytes for leak, _ in lines)
    share = min(1.0, retainer.nbytes / nbytes_then) if nbytes_then else 1.0
    in_the_end = [leak for _, leak in lines]
    trends = [leak.trend for leak in in_the_end if leak.trend is not None and leak.trend.over == "passes"]
    return replace(
        retainer,
        length=None,
        count=max(retainer.count, round(share * sum(leak.count for leak in in_the_end))),
        nbytes=max(retainer.nbytes, round(share * sum(leak.nbytes for leak in in_the_end))),
        count_per_pass=share * sum(trend.count_per_pass for trend in trends),
        nbytes_per_pass=share * sum(trend.nbytes_per_pass for trend in trends),
        freed=in_the_end[0].freed,
    )


def _births() -> int:
    return complete_log().counts()[0]


def _live_by_line() -> dict[_Line, float]:
    """Return how many resources of each line live."""
    return _Lines().live()


def _merged(later: Iterable[Retainer], freed: Sequence[Retainer]) -> tuple[Retainer, ...]:
    """Return the objects that retain memory with those that retained freed memory."""
    holders = {row.holder for row in freed}
    rows = (*(row for row in later if row.holder not in holders), *freed)
    return tuple(sorted(rows, key=lambda row: (-row.nbytes, row.holder)))


def _nbytes_of(leaks: Iterable[Leak]) -> int:
    return sum(leak.nbytes for leak in leaks)


def _line_of(leak: Leak) -> _Line:
    return leak.site, leak.tensor_kind or "", leak.op


def _not_of(lines: set[_Line], leaks: Iterable[Leak]) -> list[Leak]:
    return [leak for leak in leaks if _line_of(leak) not in lines]


def _is_freed(row: Retainer, gone: set[_Line], stay: set[_Line]) -> bool:
    """Return whether all lines of a retainer are gone. A line may make tensors of several kinds."""
    lines = {(site, kind) for site in row.sites for kind in row.kinds}
    return any(line[:2] in lines for line in gone) and all(line[:2] not in lines for line in stay)


def _marked_freed(leak: Leak, when: str) -> Leak:
    if leak.freed is not None or leak.kind in (*_KINDS_LOOKED_AT_AGAIN, "cycle") or leak.state == "disposed":
        return leak
    if when == AFTER_EXIT and leak.holders == (NOT_FOUND,):
        leak = replace(leak, holders=(_OF_EXIT,))
    elif when == AFTER_EXIT and (chain := chain_of(leak.holder)) is not None and chain.origin.kind == "compiled code":
        leak = replace(leak, remedy=_OF_AN_EXIT_FUNCTION)
    return replace(leak, freed=when, explanation=f"{leak.explanation} (It was freed at the end, {when}.)")
