"""What a detector knows of a disposal, and of memory that was seen to be born."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ._log import LOG
from ._rows import RowList
from ._site import Mark
from ._site_facts import Sites

if TYPE_CHECKING:
    from .._kinds import Layout
    from ._rows import Rows
    from ._subject import Escape

__all__ = ["Disposal", "Escaping", "Seen", "Told", "is_referenced", "see"]

Told = tuple[Hashable, int]
"""The identity of some memory, as the storages of a kind tell it, and its bytes."""


Escaping = Callable[["Seen", Any], "Escape | None"]
"""Tells of some memory, given with its reference, in which way it has outlived its scope or its tensor."""


class Disposal(NamedTuple):
    """What a detector keeps of a disposal; the layout, because the resource itself may not know it any more."""

    mark: Mark | None
    closings: int
    layout: Layout | None


@final
class Seen:
    """Memory that was seen to be born and is there: known by itself, whatever refers to it. It is not kept alive.

    Calling it tells whether it is there yet: it gives itself, or None.

    Attributes
    ----------
    identity : hashable
        As the storages of a kind tell it: holds as long as the memory is there.
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
        """In which way it has outlived its scope or its tensor: to be asked while it is there."""
        return None if self._escape is None else self._escape(self, self._reference)

    def __call__(self) -> Seen | None:
        return self if self._lives(self._reference, self.number) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and other.number == self.number and other.identity == self.identity

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes of {self.kind} on {self.device}>"


def is_referenced_in_python(reference: Callable[[], object], _number: int) -> bool:
    """Whether what a weak reference is of is there."""
    return reference() is not None


is_referenced: Final[Callable[[Any, int], bool]] = is_referenced_in_python if LOG.api is None else LOG.is_referenced


def see_in_python(
    kind: str,
    but: Container[Hashable],
    identify: Callable[[Any], Told | None] | None,
    lives: Callable[[Any, int], bool],
    references: Sequence[Any],
    rows: Rows,
    escape: Escaping | None = None,
) -> tuple[list[Seen], Rows]:
    """What was seen of the memory of one kind that is there now, and the rows of its births.

    Parameters
    ----------
    kind : str
        The name of the kind; what the log has of other kinds is left out.
    but : container of hashable
        What `LOG.key_of` gives of identities that are left out.
    identify : callable, optional
        Tells identity and bytes of what a reference gives, or None for what has gone. Left out, the references are
        identities themselves, and the bytes are those of the row.
    lives : callable
        Told a reference and the number of its birth, whether the memory is there.
    references, rows : sequence, Rows
        What the log has.
    escape : callable, optional
        Told the memory and a reference, in which way it has outlived its scope or its tensor.
    """
    sites = Sites()
    pieces: list[Seen] = []
    kept = RowList()
    for place, reference in enumerate(references):
        row = rows[place]
        if row is None or (facts := sites(row[0])).kind != kind:
            continue
        told: Told | None = (reference, row[1])
        if identify is not None:
            thing = reference()
            told = None if thing is None else identify(thing)
        if told is None or LOG.key_of(told[0]) in but:
            continue
        pieces.append(Seen(told[0], kind, facts.device, told[1], row[2], reference, lives, escape))
        kept.append(row)
    return pieces, kept


def _see_compiled(
    kind: str,
    but: Container[Hashable],
    identify: Callable[[Any], Told | None] | None,
    lives: Callable[[Any, int], bool],
    references: Sequence[Any],
    rows: Rows,
    escape: Escaping | None = None,
) -> tuple[list[Seen], Rows]:
    pieces, kept = LOG.see(Seen, kind, Sites(), but, identify, lives, references, rows, escape)
    return pieces, kept


see: Final = see_in_python if LOG.api is None else _see_compiled
