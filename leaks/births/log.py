"""The log of births of this process: what was born, where, in which scope, and what became of it.

The log itself is compiled: `LOG`, which ``compiled.pyi`` describes. This module has what is kept of
a disposal, the facts that all births of a site share, and memory whose birth was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, final

from ...scopes.base.process import at_forks
from ...scopes.base.sites import CachedByMark, Mark, Site, site_of
from ...scopes.framework import FRAMEWORKS, Escape, LiveMemory, MemoryFacts, ModelFacts
from ...scopes.identity import Entry
from .compiled import LOG, Log, Row, SiteRow, untrack

if TYPE_CHECKING:
    from ...scopes.kinds import Layout

__all__ = [
    "DISPOSALS",
    "GATHERING",
    "JOINING",
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
    "innermost_line",
]

JOINING: Final = frozenset(
    {"append", "cat", "column_stack", "concat", "concatenate", "dstack", "hstack", "insert", "pad", "vstack"}
)
"""Functions whose result may be an earlier result with something added."""
GATHERING: Final = JOINING | {"DataFrame", "array", "asarray", "block", "block_diag", "bmat", "stack"}
"""Functions that put the tensors of a list together."""
# Often only the shape of what they return is asked for.
LOG.record_soon(GATHERING)

BirthRows: TypeAlias = Sequence[Row]
"""The rows of some births in the log."""


def innermost_line(row: SiteRow) -> Site | None:
    """Return the line of a site of the log; None where it has none."""
    return site_of(row.places[0] if row.places else None)


def complete_log() -> Log:
    """Return the log after all pending births are recorded, to be counted, listed or reported.

    A framework may record a birth a moment after it: see `Framework.record_pending`.
    """
    FRAMEWORKS.record_pending()
    return LOG


# ------------------------------------------------------------------ disposals

DISPOSALS: Final[dict[Entry, tuple[Disposal, Row]]] = LOG.disposals
"""For each disposed resource whose birth was recorded: where it was disposed, and the row of its
birth. The log takes out resources that have died.
"""


class Disposal(NamedTuple):
    """What a detector keeps of a disposal.

    Attributes
    ----------
    mark : Mark or None
        The place in user code that disposed the resource.
    closings : int
        How many scopes had been closed then.
    layout : Layout or None
        The last known layout: the disposed resource itself may no longer have one.
    """

    mark: Mark | None
    closings: int
    layout: Layout | None


# A forked child reports only its own births; the parent process reports those before the fork.
at_forks(in_child=LOG.clear)


# ------------------------------------------------------------------ what all births of a site share


class SiteFacts(NamedTuple):
    """The facts about a site.

    Attributes
    ----------
    site : Site or None
        The line, where there is one.
    frames : tuple of Site
        That line and the lines that called it, innermost first.
    kind, device : str
        The kind of what is born there, and its device.
    op : str or None
        The name of the call that makes it, where that is known.
    made : int
        How many results had been made there when the facts were read: see `SiteRow.made`.
    live : float
        How many of them were alive then. Both are estimates where births are sampled.
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
        self._lines = CachedByMark(site_of)

    def __call__(self, number: int) -> SiteFacts:
        """Return the facts about the site with this number."""
        facts = self._known.get(number)
        if facts is None:
            row = LOG.site(number)
            frames = tuple(site for place in row.places if (site := self.line(place)) is not None)
            first = frames[0] if frames else None
            facts = SiteFacts(first, frames, row.kind, row.device, row.op, row.made, row.live)
            self._known[number] = facts
        return facts

    def line(self, mark: Mark | None) -> Site | None:
        """Return the line of a place; the same object for the same place."""
        return None if mark is None else self._lines(mark)


# ------------------------------------------------------------------ memory whose birth was recorded

Escaping = Callable[["RecordedMemory", Any], "Escape | None"]
"""Called with a `RecordedMemory` and its reference, returns how it has escaped."""


class UnheldMemory(Protocol):
    """Memory whose birth was recorded and that no resource stands for.

    It is the memory of a plain array, or the storage of a tensor whose object is gone.

    This object does not keep the memory alive. Called, it returns itself while the memory is there,
    and then None.
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
    """Memory whose birth was recorded, whatever refers to it. This object does not keep it alive.

    Attributes
    ----------
    identity : hashable
        The identity that `Kind.storages` gives for it; valid while the memory is there.
    kind : str
        The name of the kind of tensor that it was born as.
    device : str
        The name of its device.
    nbytes : int
        Its bytes.
    number : int
        The number of its birth. An identity can come back for other memory, a number cannot.
    model : ModelFacts or None
        The facts about a model, whose memory this is as a whole; None for other memory.
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
        The memory in the log, from the framework of the kind.
    left_out : container of hashable
        Identities of memory to leave out.
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
