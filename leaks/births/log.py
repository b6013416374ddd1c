"""The log of births of this process: what was born, where, in which scope, and what became of it.

The log itself is compiled: `LOG`, which ``compiled.pyi`` describes. Here stand what is kept of a
disposal, the facts that all births of a site share, and memory that was seen to be born.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, final

from ...scopes.base.process import at_forks
from ...scopes.base.sites import Mark, Site, site_of
from ...scopes.framework import FRAMEWORKS, Escape, LiveMemory, MemoryFacts, ModelFacts
from ...scopes.identity import Entry
from .compiled import LOG, Log, Row, SiteRow, untrack

if TYPE_CHECKING:
    from ...scopes.kinds import Layout

__all__ = [
    "DISPOSALS",
    "LOG",
    "Disposal",
    "Row",
    "BirthRows",
    "RecordedMemory",
    "SiteFacts",
    "SiteRow",
    "Sites",
    "Subject",
    "UnheldMemory",
    "complete_log",
    "find_recorded_memory",
]

BirthRows: TypeAlias = Sequence[Row]
"""What the log knows of some births."""


def complete_log() -> Log:
    """Return the log with all births that were seen: whoever counts, lists or reports reads it.

    A framework may look at the memory of a tensor a moment after its birth: see
    `Framework.record_pending`.
    """
    FRAMEWORKS.record_pending()
    return LOG


# ------------------------------------------------------------------ disposals

DISPOSALS: Final[dict[Entry, tuple[Disposal, Row]]] = LOG.disposals
"""Of the disposed resources that were seen to be born: where they were disposed, and the row of
their birth. The log takes out what has died.
"""


class Disposal(NamedTuple):
    """What a detector keeps of a disposal.

    It includes the layout, which the disposed resource itself may no longer know.
    """

    mark: Mark | None
    closings: int
    layout: Layout | None


# The parent process reports its own births.
at_forks(in_child=LOG.clear)


# ------------------------------------------------------------------ what all births of a site share


class SiteFacts(NamedTuple):
    """The facts about a site.

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
    live : float
        How many of them were there then.
    """

    site: Site | None
    frames: tuple[Site, ...]
    kind: str
    device: str
    op: str | None
    made: int
    live: float


@final
class Sites:
    """The facts about sites, each read from the log once."""

    __slots__ = ("_known", "_lines")

    def __init__(self) -> None:
        self._known: dict[int, SiteFacts] = {}
        self._lines: dict[Mark, Site | None] = {}

    def __call__(self, number: int) -> SiteFacts:
        """Return the facts about the site with this number."""
        facts = self._known.get(number)
        if facts is None:
            row = LOG.site(number)
            frames = tuple(site for place in row.places if (site := self.line(place)) is not None)
            first = frames[0] if frames else None
            facts = SiteFacts(first, frames, row.kind, row.device, row.op, row.births, row.live)
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

Escaping = Callable[["RecordedMemory", Any], "Escape | None"]
"""Returns how some memory, given with its reference, has escaped."""


class UnheldMemory(Protocol):
    """Memory whose birth was recorded and that no resource stands for.

    It is a plain array's, or the storage of a dead tensor.

    It is not kept alive. Called, it returns itself while the memory is there, and then None.
    """

    @property
    def identity(self) -> Hashable:
        """Return the identity that `Kind.storages` gives for a tensor that uses the memory."""
        ...

    @property
    def nbytes(self) -> int:
        """Return the bytes of the memory."""
        ...

    @property
    def kind(self) -> str:
        """Return the name of the kind of tensor that the memory was born as."""
        ...

    @property
    def device(self) -> str:
        """Return the device of the memory."""
        ...

    @property
    def escape(self) -> Escape | None:
        """Return how the memory has escaped; None if it has not, or was moved out."""
        ...

    def __call__(self) -> object:
        """Return this object, or None if the memory is gone."""
        ...


Subject: TypeAlias = Entry | UnheldMemory
"""What a record is of: a resource, or memory that no resource stands for."""


@final
class RecordedMemory:
    """Memory whose birth was recorded and that is still there, whatever refers to it.

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
    model : ModelFacts or None
        What is reported of a model, which stands for all that belongs to it; None for other memory.
    """

    __slots__ = (
        "__weakref__",
        "_escape",
        "_lives",
        "_reference",
        "device",
        "identity",
        "kind",
        "model",
        "nbytes",
        "number",
    )

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
        model: ModelFacts | None = None,
    ) -> None:
        self.identity = identity
        self.kind = kind
        self.device = device
        self.nbytes = nbytes
        self.number = number
        self._reference = reference
        self._lives = lives
        self._escape = escape
        self.model = model

    @property
    def escape(self) -> Escape | None:
        """Return how the memory has escaped. Ask only while the memory is there."""
        return None if self._escape is None else self._escape(self, self._reference)

    def __call__(self) -> RecordedMemory | None:
        """Return this object while the memory is there, and then None, as a weak reference does."""
        return self if self._lives(self._reference, self.number) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedMemory) and other.number == self.number and other.identity == self.identity

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes of {self.kind} on {self.device}>"


def find_recorded_memory(memory: LiveMemory, left_out: Container[Hashable]) -> tuple[list[RecordedMemory], list[Row]]:
    """Return the living memory of one kind whose birth was recorded, and the rows of its births.

    Parameters
    ----------
    memory : LiveMemory
        What the log has of it, from the framework of the kind.
    left_out : container of hashable
        Identities of memory that is not wanted.
    """
    sites = Sites()
    pieces: list[RecordedMemory] = []
    kept: list[Row] = []
    for reference, row in zip(memory.references, memory.rows, strict=True):
        facts = sites(row.site)
        if facts.kind != memory.kind:
            continue
        found: MemoryFacts | None = (reference, row.nbytes)
        model: ModelFacts | None = None
        device = facts.device
        if memory.identify is not None:
            thing = reference()
            found = None if thing is None else memory.identify(thing)
            if found is not None and memory.describe is not None:
                model = memory.describe(thing)
                device = model.device
            del thing
        if found is None or found[0] in left_out:
            continue
        number = row.number
        pieces.append(
            RecordedMemory(
                found[0], memory.kind, device, found[1], number, reference, memory.lives, memory.escape, model
            )
        )
        kept.append(row)
    untrack(pieces)
    return pieces, kept
