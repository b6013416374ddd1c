"""A leak: resources of one line that are there for one reason; their trend; the source lines around a site."""

from __future__ import annotations

import hashlib
import linecache
import os
from dataclasses import dataclass
from typing import Final, Literal, final

from ...scopes.sites import Site, shown
from .records import Record, State

__all__ = [
    "Excerpt",
    "Leak",
    "LeakKind",
    "Sureness",
    "Trend",
    "excerpt_of",
    "fingerprint_of",
]

# A leak: resources of one line that are there for one reason, with who holds them.


LeakKind = Literal[
    "escaped", "growth", "graph", "view", "cycle", "exception", "scope", "suspended", "worker", "native", "alive"
]
"""Why something is still there."""

Sureness = Literal["certain", "likely", "possible"]
"""How sure the report is that something is a leak."""


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
        The number of the line that is meant.
    """

    file: str
    first: int
    lines: tuple[str, ...]
    line: int


@final
@dataclass(frozen=True, slots=True)
class Leak:
    """What is there from one line, for one reason.

    Attributes
    ----------
    kind : str
        The reason: ``"escaped"`` (due at its scope's end and not moved out, still referenced),
        ``"growth"`` (unowned, and more from pass to pass), ``"graph"`` (alive only because an
        autograd graph saved it), ``"view"`` (pinned by a small view), ``"cycle"`` (alive until
        ``gc.collect()``), ``"exception"`` (held by a traceback, by logging, by ``sys.last_exc``),
        ``"scope"`` (a scope that was not closed), ``"suspended"`` (a generator or task that is
        suspended inside a scope), ``"worker"`` (a worker of a DataLoader keeps batches),
        ``"native"`` (resident memory grows and tracked bytes do not), or ``"alive"`` (there, and
        nothing says why).
    sure : {"certain", "likely", "possible"}
        How sure the report is.
    tensor : str or None
        What the oldest one is: kind, dtype and shape. None for a scope and for native memory.
    tensor_kind : str or None
        The name of their kind.
    device : str or None
        Where they are.
    count : int
        How many they are.
    nbytes : int
        The bytes that they pin, each storage once.
    used_nbytes : int
        The bytes of their own elements; fewer than `nbytes` for views.
    site : Site or None
        The line that made them.
    frames : tuple of Site
        That line and those that led to it, innermost first, as many as the detector kept.
    op : str or None
        The call that made them, where it is known.
    state : {"alive", "disposed"}
        Whether they are alive, or were disposed under a live reference.
    disposal : Site or None
        Where the oldest was disposed.
    scopes : tuple of str or None
        The names of the scopes that they were born in, each once; see `Record.scope`.
    oldest_age_s, newest_age_s : float or None
        Seconds since the first and the last of the births.
    generation : int or None
        How many scopes have been closed since the oldest was born.
    trend : Trend or None
        How their number grew over the passes, where it did.
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
        The process.
    excerpt : Excerpt or None
        The lines around the site, where the source can be read.
    records : tuple of Record
        The oldest of them, 20 at most.
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

    @property
    def holder(self) -> str:
        """The shortest of the chains that hold the oldest, or what is said where none was found."""
        return self.holders[0] if self.holders else "not found"


def fingerprint_of(kind: str, tensor_kind: str | None, site: Site | None, op: str | None) -> str:
    """What stays the same of a leak when its program is edited and run elsewhere: no line, no absolute path."""
    file = "" if site is None else shown(site.file)
    if os.path.isabs(file):
        file = os.path.basename(file)
    parts = (kind, tensor_kind or "", file.replace(os.sep, "/"), "" if site is None else site.function, op or "")
    return hashlib.sha1("\0".join(parts).encode(), usedforsecurity=False).hexdigest()


# How the number of live resources of a line went over the passes of a loop.


@final
@dataclass(frozen=True, slots=True)
class Trend:
    """A growth from pass to pass.

    Attributes
    ----------
    passes : int
        How many passes were looked at.
    count_per_pass : float
        How many resources more there are after each pass.
    nbytes_per_pass : float
        How many bytes more.
    first_pass : int
        The pass from which on it grew; what came before was warm-up.
    fit : float
        How much of the course the steady growth explains, from 0 to 1.
    series : tuple of (int, int, int)
        The course itself: pass, live count, live bytes; at most 200 of the passes.
    """

    passes: int
    count_per_pass: float
    nbytes_per_pass: float
    first_pass: int
    fit: float
    series: tuple[tuple[int, int, int], ...]


# Lines of source around a site.


_LINES_AROUND: Final = 2


def excerpt_of(site: Site | None) -> Excerpt | None:
    """The lines around a site, where its source can be read."""
    if site is None or site.line <= 0:
        return None
    lines = linecache.getlines(site.file)
    if site.line > len(lines):
        return None
    first = max(1, site.line - _LINES_AROUND)
    return Excerpt(
        site.file, first, tuple(line.rstrip("\r\n") for line in lines[first - 1 : site.line + _LINES_AROUND]), site.line
    )
