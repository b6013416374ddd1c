"""The log of births of this process: what was born, where, in which scope, and what became of it.

The log itself is compiled: `LOG`, whose functions ``compiled.pyi`` describes. Here stand what is
kept of a disposal, the facts that all births of a site share, and memory that was seen to be born.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

from ...scopes.forks import at_forks
from ...scopes.identity import Entry
from ...scopes.sites import Mark, Site, site_of
from . import compiled as LOG
from .compiled import Row

if TYPE_CHECKING:
    from ...scopes.kinds import Layout

__all__ = [
    "DISPOSALS",
    "LOG",
    "Disposal",
    "Escape",
    "Escaping",
    "Row",
    "Rows",
    "Seen",
    "SiteFacts",
    "Sites",
    "Subject",
    "Told",
    "UnheldMemory",
    "is_referenced",
    "see",
]

Rows: TypeAlias = Sequence[Row]
"""What the log knows of some births."""


# ------------------------------------------------------------------ disposals

DISPOSALS: Final[dict[Entry, tuple[Disposal, Row]]] = LOG.disposals
"""Of the disposed resources that were seen to be born: where they were disposed, and the row of their birth.
The log takes out what has died.
"""


class Disposal(NamedTuple):
    """What a detector keeps of a disposal; the layout, because the resource itself may not know it any more."""

    mark: Mark | None
    closings: int
    layout: Layout | None


# Births in the parent are the parent's to report.
at_forks(in_child=LOG.clear)


# ------------------------------------------------------------------ what all births of a site share


class SiteFacts(NamedTuple):
    """What is known of a site.

    Attributes
    ----------
    site : Site or None
        The line, where there is one.
    frames : tuple of Site
        That line and those that led to it, innermost first.
    kind, device : str
        What is born there, and where.
    op : str or None
        The call that makes it, where that is known.
    made : int
        How many were born there when this was asked.
    """

    site: Site | None
    frames: tuple[Site, ...]
    kind: str
    device: str
    op: str | None
    made: int


@final
class Sites:
    """The facts of sites, each asked of the log once."""

    __slots__ = ("_known", "_lines")

    def __init__(self) -> None:
        self._known: dict[int, SiteFacts] = {}
        self._lines: dict[Mark, Site | None] = {}

    def __call__(self, number: int) -> SiteFacts:
        """Return the facts of the site of a number."""
        facts = self._known.get(number)
        if facts is None:
            kind, device, op, places, made, *_ = LOG.site(number)
            frames = tuple(site for place in places if (site := self.line(place)) is not None)
            facts = SiteFacts(frames[0] if frames else None, frames, kind, device, op, made)
            self._known[number] = facts
        return facts

    def line(self, mark: Mark | None) -> Site | None:
        """Return the line of a place; the same object for the same place."""
        if mark is None:
            return None
        try:
            return self._lines[mark]
        except KeyError:
            site = self._lines[mark] = site_of(mark)
            return site


# ------------------------------------------------------------------ memory that was seen to be born

Escape = Literal["due", "disposed"]
"""How memory escaped: it outlived its scope (due), or its tensor, which was disposed."""

Told = tuple[Hashable, int]
"""The identity of some memory, as the storages of a kind give it, and its bytes."""

Escaping = Callable[["Seen", Any], "Escape | None"]
"""Returns how some memory, given with its reference, has escaped."""


class UnheldMemory(Protocol):
    """Memory that was seen to be born, known by itself: a plain array's, or the storage of a tensor that is gone.

    It is not kept alive. Called, it returns itself while the memory is there, and then None.
    """

    @property
    def identity(self) -> Hashable:
        """As `Kind.storages` gives it for a tensor that uses the memory."""
        ...

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        ...

    @property
    def kind(self) -> str:
        """The name of the kind of tensor that it was born as."""
        ...

    @property
    def device(self) -> str:
        """Where it is."""
        ...

    @property
    def escape(self) -> Escape | None:
        """How it has escaped; None where it has not, or was moved out."""
        ...

    def __call__(self) -> object:
        """Return itself, or None where it is gone."""
        ...


Subject: TypeAlias = Entry | UnheldMemory
"""What a record is of: a resource, or memory that no resource stands for."""


@final
class Seen:
    """Memory that was seen to be born and is there: known by itself, whatever refers to it.

    It is not kept alive.

    Attributes
    ----------
    identity : hashable
        As the storages of a kind give it: holds as long as the memory is there.
    kind : str
        The name of the kind of tensor that it was born as.
    device : str
        Where it is.
    nbytes : int
        Its bytes.
    number : int
        The number of its birth: two are the same that have the same.
    """

    __slots__ = ("__weakref__", "_escape", "_lives", "_reference", "device", "identity", "kind", "nbytes", "number")

    key: Final = None

    def __init__(
        self,
        identity: Hashable,
        kind: str,
        device: str,
        nbytes: int,
        number: int,
        reference: Any,
        lives: Callable[[Any, int], bool],
        escape: Escaping | None = None,
    ) -> None:
        self.identity = identity
        self.kind = kind
        self.device = device
        self.nbytes = nbytes
        self.number = number
        self._reference = reference
        self._lives = lives
        self._escape = escape

    @property
    def escape(self) -> Escape | None:
        """How it has escaped: to be asked while it is there."""
        return None if self._escape is None else self._escape(self, self._reference)

    def __call__(self) -> Seen | None:
        """Return this object as long as the memory is there, and then None, as a weak reference does."""
        return self if self._lives(self._reference, self.number) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and other.number == self.number and other.identity == self.identity

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes of {self.kind} on {self.device}>"


def is_referenced(reference: Callable[[], object], _number: int) -> bool:
    """Return whether what a weak reference is of is there."""
    return reference() is not None


def see(
    kind: str,
    but: Container[Hashable],
    identify: Callable[[Any], Told | None] | None,
    lives: Callable[[Any, int], bool],
    references: Sequence[Any],
    rows: Rows,
    escape: Escaping | None = None,
) -> tuple[list[Seen], list[Row]]:
    """Return what was seen of the memory of one kind that is there now, and the rows of its births.

    Parameters
    ----------
    kind : str
        The name of the kind; what the log has of other kinds is left out.
    but : container of hashable
        Identities that are left out.
    identify : callable, optional
        Given what a reference gives, returns its identity and its bytes, or None for what has gone.
        Left out, the references are identities themselves, and the bytes are those of the row.
    lives : callable
        Given a reference and the number of its birth, returns whether the memory is there.
    references, rows : sequence, Rows
        What the log has.
    escape : callable, optional
        Given the memory and a reference, returns how it has escaped.
    """
    sites = Sites()
    pieces: list[Seen] = []
    kept: list[Row] = []
    for reference, row in zip(references, rows, strict=True):
        facts = sites(row.site)
        if facts.kind != kind:
            continue
        found: Told | None = (reference, row.nbytes)
        if identify is not None:
            thing = reference()
            found = None if thing is None else identify(thing)
        if found is None or found[0] in but:
            continue
        pieces.append(Seen(found[0], kind, facts.device, found[1], row.number, reference, lives, escape))
        kept.append(row)
    LOG.untrack(pieces)
    return pieces, kept
