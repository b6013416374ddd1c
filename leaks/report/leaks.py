"""A leak: resources of one line that are alive for one reason, with trend and source lines."""

from __future__ import annotations

import hashlib
import linecache
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from ...scopes.base.sites import Site, shown
from .records import Record, State

__all__ = [
    "Excerpt",
    "KnownLeak",
    "Leak",
    "LeakKind",
    "RECORDS_AT_MOST",
    "Sureness",
    "Trend",
    "Unjudged",
    "WARM_UP",
    "bare_leak",
    "excerpt_of",
    "fingerprint_of",
]

RECORDS_AT_MOST: Final = 20
"""A leak has so many records at most: of a million living tensors of a line, most are alike."""

LeakKind = Literal[
    "escaped",
    "growth",
    "model",
    "graph",
    "view",
    "cycle",
    "exception",
    "scope",
    "suspended",
    "worker",
    "native",
    "alive",
]
"""Why resources are still there: see `Leak.kind`."""

Unjudged = Literal["holder", "growth", "trend", "view"]
"""What a report could not judge about a leak: see `Leak.unjudged`."""

Sureness = Literal["certain", "likely", "possible"]
"""How sure the report is of a leak."""


@final
@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of source around a site.

    Attributes
    ----------
    file : str
        The path of the file.
    first : int
        The number of the first of the lines.
    lines : tuple of str
        The lines, without their ends.
    line : int
        The number of the line of the site.
    """

    file: str
    first: int
    lines: tuple[str, ...]
    line: int


@final
@dataclass(frozen=True, slots=True)
class KnownLeak:
    """A known leak of a library, for which there is nothing to look for in the program.

    Attributes
    ----------
    library : str
        The library.
    version : str or None
        The version that the program has imported; None where it has none.
    what : str
        What the library keeps.
    remedy : str
        What to do.
    link : str
        Where it is discussed.
    """

    library: str
    version: str | None
    what: str
    remedy: str
    link: str

    def __str__(self) -> str:
        version = "" if self.version is None else f" {self.version}"
        return f"known leak of {self.library}{version}: {self.what} ({self.link})"


@final
@dataclass(frozen=True, slots=True)
class Leak:
    """Resources of one line that are alive for one reason.

    Attributes
    ----------
    kind : str
        The reason: ``"escaped"`` (due at its scope's end and not moved out, still referenced),
        ``"growth"`` (unowned, and more from pass to pass), ``"model"`` (more models from pass to
        pass, each with its parameters, buffers, gradients and optimizer state), ``"graph"`` (alive
        only because an autograd graph saved it), ``"view"`` (pinned by a small view), ``"cycle"``
        (alive until ``gc.collect()``), ``"exception"`` (held by a traceback, by logging, by
        ``sys.last_exc``), ``"scope"`` (a scope that was not closed), ``"suspended"`` (a generator
        or task that is suspended inside a scope), ``"worker"`` (a worker of a DataLoader keeps
        batches), ``"native"`` (resident memory grows and tracked bytes do not), or ``"alive"``
        (alive for none of these reasons).
    sure : {"certain", "likely", "possible"}
        How certain the report is.
    tensor : str or None
        Kind, dtype and shape of the oldest resource. None for a scope and for native memory.
    tensor_kind : str or None
        The name of the kind of the resources.
    device : str or None
        The device of the resources.
    count : int
        The number of resources.
    nbytes : int
        The bytes that they pin, each storage once.
    used_nbytes : int
        The bytes of their own elements; fewer than `nbytes` for views.
    site : Site or None
        The line that made them.
    frames : tuple of Site
        The stack of that line, innermost first, as many frames as the detector kept.
    op : str or None
        The call that made them, if it is known.
    state : {"alive", "disposed"}
        Whether they are alive, or were disposed under a live reference.
    disposal : Site or None
        The line where the oldest was disposed.
    scopes : tuple of str or None
        The names of the scopes that they were born in, each once; see `Record.scope`.
    oldest_age_s, newest_age_s : float or None
        Seconds since the first and the last of the births.
    generation : int or None
        How many scopes have been closed since the oldest was born.
    trend : Trend or None
        The growth of their number over the passes; None if it did not grow.
    holders : tuple of str
        What holds the oldest, as code: at most three chains, the shortest first.
    carriers : tuple of str
        The kept tensors whose graph holds them.
    members : tuple of str
        The members of the cycle that holds them, by type and attribute.
    explanation : str
        What happens and what to do, in a sentence.
    fingerprint : str
        The same for the same leak in another run, also after lines were inserted above it.
    pid : int
        The id of the process.
    excerpt : Excerpt or None
        The lines around the site; None if the source cannot be read.
    records : tuple of Record
        The records of the oldest, 20 at most.
    unjudged : {"holder", "growth", "trend", "view"} or None
        What could not be judged. ``"holder"``: who holds it, because the search ended at its limit.
        ``"growth"``: whether it grows, because there were too few passes, and the resources of the
        line stay. ``"trend"``: whether it grows, because too few of its births were in the sample.
        ``"view"``: whether a view pins it. None where everything was judged.
    freed : str or None
        When it was freed in the end: ``"by exit functions"``, ``"when main() returned"``. None if
        it is still there.
    remedy : str
        What to do about it, as the end of `explanation`; ``""`` where there is nothing to do.
    known : KnownLeak or None
        The known leak of a library that holds it; None where only the program holds it.
    rank : int or None
        The rank of its process, in a report of several processes; None where the process has none.
    made : int or None
        How many resources the line made, where it is not known whether it grows and it released
        some of them; otherwise None.
    graph_nbytes : int
        The bytes of graphs that are in no other line of the report. For a graph: the bytes that it
        saved, where code of an extension made most of them, or where the graph of a kept tensor
        reaches over many steps of an optimizer. For kept tensors that are smaller than their
        graphs, such as losses: about the bytes of the nodes, which stay after ``backward()`` has
        freed what they saved. Otherwise 0.
    """

    kind: LeakKind
    sure: Sureness
    tensor: str | None
    tensor_kind: str | None
    device: str | None
    count: int
    nbytes: int
    used_nbytes: int
    site: Site | None
    frames: tuple[Site, ...]
    op: str | None
    state: State
    disposal: Site | None
    scopes: tuple[str | None, ...]
    oldest_age_s: float | None
    newest_age_s: float | None
    generation: int | None
    trend: Trend | None
    holders: tuple[str, ...]
    carriers: tuple[str, ...]
    members: tuple[str, ...]
    explanation: str
    fingerprint: str
    pid: int
    excerpt: Excerpt | None
    records: tuple[Record, ...]
    unjudged: Unjudged | None = None
    freed: str | None = None
    remedy: str = ""
    known: KnownLeak | None = None
    rank: int | None = None
    graph_nbytes: int = 0
    made: int | None = None

    @property
    def holder(self) -> str:
        """Return the shortest chain that holds the oldest resource, or ``"not found"``."""
        return self.holders[0] if self.holders else "not found"


def fingerprint_of(kind: str, tensor_kind: str | None, site: Site | None, op: str | None) -> str:
    """Return a hash that identifies a leak also after its program was edited or moved.

    It depends on no line number and no absolute path.
    """
    file = "" if site is None else shown(site.file)
    if os.path.isabs(file):
        file = os.path.basename(file)
    parts = (kind, tensor_kind or "", file.replace(os.sep, "/"), "" if site is None else site.function, op or "")
    return hashlib.sha1("\0".join(parts).encode(), usedforsecurity=False).hexdigest()


def bare_leak(
    kind: LeakKind,
    sure: Sureness,
    nbytes: int,
    explanation: str,
    *,
    site: Site | None,
    name: str | None,
    tensor_kind: str | None = None,
) -> Leak:
    """Return a leak of which no resource is at hand, and so nothing else is known.

    Its fingerprint is of its kinds, its line, and `name`: that of its scope, or of the call there.
    """
    return Leak(
        kind=kind,
        sure=sure,
        tensor=tensor_kind,
        tensor_kind=tensor_kind,
        device=None,
        count=1,
        nbytes=nbytes,
        used_nbytes=nbytes,
        site=site,
        frames=() if site is None else (site,),
        op=None,
        state="alive",
        disposal=None,
        scopes=(),
        oldest_age_s=None,
        newest_age_s=None,
        generation=None,
        trend=None,
        holders=(),
        carriers=(),
        members=(),
        explanation=explanation,
        fingerprint=fingerprint_of(kind, tensor_kind, site, name),
        pid=os.getpid(),
        excerpt=excerpt_of(site),
        records=(),
    )


# The number of live resources of a line over the passes of a loop.

_WHILE_JOINED: Final = 2
"""While more is joined to arrays, at most so many results are alive besides."""
WARM_UP: Final = 4
"""One part in so many of a series, the first points, is warm-up: caches fill, and optimizers make
their state. Of the 16 passes that growth needs, 12 are left to tell it by.
"""


@final
@dataclass(frozen=True, slots=True)
class Trend:
    """The growth of a line from pass to pass.

    Attributes
    ----------
    passes : int
        The number of passes that were examined; of births of the line if `over` is ``"births"``.
    count_per_pass : float
        The resources that are added with each pass.
    nbytes_per_pass : float
        The bytes that are added with each pass.
    first_pass : int
        The pass where the growth began, after the warm-up.
    fit : float
        The share of the series that steady growth explains, from 0 to 1.
    series : tuple of (int, int, int)
        Pass, live count and live bytes, for at most 200 of the passes.
    over : {"passes", "births"}
        Whether growth was seen from pass to pass, or from one birth of the line to the next.
    """

    passes: int
    count_per_pass: float
    nbytes_per_pass: float
    first_pass: int
    fit: float
    series: tuple[tuple[int, int, int], ...]
    over: Literal["passes", "births"] = "passes"

    @property
    def replaced(self) -> int:
        """Return how many arrays become larger as births of the line replace them; or 0."""
        return replaced(self.series) if self.over == "births" else 0


def replaced(series: Sequence[tuple[int, int, int]]) -> int:
    """Return how many of a line are alive while new ones replace them; 0 if more and more are.

    More and more is joined to one array; or to one for each layer of a model.

    Parameters
    ----------
    series : sequence of (int, int, int)
        Births of the program, live count and live bytes, in order.
    """
    counts = [count for _, count, _ in series]
    if max(counts, default=0) <= _WHILE_JOINED:
        return min(1, max(counts, default=0))
    later = counts[len(counts) // WARM_UP :]
    live = min(later[len(later) // 2 :])
    return live if all(live <= count <= live + _WHILE_JOINED for count in later) else 0


# Lines of source around a site.


_LINES_AROUND: Final = 2
"""So many lines are shown above and below the line of a site."""


def excerpt_of(site: Site | None) -> Excerpt | None:
    """Return the source lines around a site, or None if the source cannot be read."""
    if site is None or site.line <= 0:
        return None
    lines = linecache.getlines(site.file)
    if site.line > len(lines):
        return None
    first = max(1, site.line - _LINES_AROUND)
    return Excerpt(
        site.file, first, tuple(line.rstrip("\r\n") for line in lines[first - 1 : site.line + _LINES_AROUND]), site.line
    )
