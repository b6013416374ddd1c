"""Objects that retain memory, and their text: one row for each cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import Site, shown
from .leaks import KnownLeak

__all__ = [
    "SHARED",
    "Retainer",
    "noun_of",
    "text_by_holder",
]


def noun_of(kind: str | None) -> str:
    """Return "model" or "tensor" for a kind: the names of kinds of models end with "Module"."""
    return "model" if kind is not None and kind.endswith("Module") else "tensor"


@final
@dataclass(frozen=True, slots=True)
class Retainer:
    """An object that retains memory, which would be freed if the object went away.

    Attributes
    ----------
    holder : str
        How code reaches the object; `SHARED` with examples for memory that no single object
        retains.
    type : str
        The name of its type; empty for memory that no single object retains.
    length : int or None
        How many items it has, if it has a length.
    count : int
        The number of resources whose memory it retains.
    nbytes : int
        The bytes that only it retains, each storage once, without what another row retains.
    sites : tuple of Site
        The lines that made these resources, the most bytes first.
    count_per_pass, nbytes_per_pass : float
        The growth of these lines in a pass, as far as its resources are concerned; 0 where no line
        grows.
    grown_at : Site or None
        The line of the source that adds to it, if there is exactly one.
    kinds : tuple of str
        The kinds of the resources.
    pid : int
        The id of the process.
    freed : str or None
        What freed it at the end of the run, after it had grown; None where it is still there.
    known : KnownLeak or None
        The known leak of a library that holds all of its memory, or None.
    """

    holder: str
    type: str
    length: int | None
    count: int
    nbytes: int
    sites: tuple[Site, ...]
    count_per_pass: float
    nbytes_per_pass: float
    grown_at: Site | None
    kinds: tuple[str, ...]
    pid: int
    freed: str | None = None
    known: KnownLeak | None = None

    def __str__(self) -> str:
        facts = [self.type] if self.type else []
        if self.count_per_pass:
            rate = f"{self.count_per_pass:.2f}".rstrip("0").rstrip(".")
            noun = next(iter(dict.fromkeys(map(noun_of, self.kinds))), "tensor") + ("" if rate == "1" else "s")
            facts.append(f"+{rate} {noun} and {bytes_text(round(self.nbytes_per_pass))} a pass")
        elif self.length is not None:
            facts.append(f"{self.length:,} items" if self.length != 1 else "1 item")
        about = f" ({', '.join(facts)})" if facts else ""
        if len(self.sites) == 1:
            born = f" born at {shown(self.sites[0].file)}:{self.sites[0].line}"
        else:
            born = f" born at {len(self.sites)} lines" if self.sites else ""
        verb = "retained" if self.freed is not None else "retains" if self.type else "retain"
        grown = self.grown_at
        added = "" if grown is None else f"; it is added to at {shown(grown.file)}:{grown.line}"
        holder = self.holder.replace("module __main__.", "")
        freed = "" if self.freed is None else f"; freed {self.freed}"
        known = "" if self.known is None else f"; {self.known}"
        return f"{holder}{about} {verb} {bytes_text(self.nbytes)}{born}{added}{freed}{known}"


SHARED: Final = "several holders together"
"""The beginning of the holder of memory that no single object retains."""

_ROWS: Final = 10
"""So many rows are shown."""


def text_by_holder(retainers: tuple[Retainer, ...]) -> str:
    """Return one line for each of the largest rows."""
    lines = [str(row) for row in retainers[:_ROWS]]
    more = len(retainers) - _ROWS
    return "\n".join([*lines, *([f"and {more:,} more"] if more > 0 else [])] or ["nothing is retained"])
