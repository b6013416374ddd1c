"""What a detector knows of a birth, of a disposal, and of memory that was seen to be born."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ._log import LOG, Row
from ._site import Mark

if TYPE_CHECKING:
    from .._kinds import Layout
    from ._subject import Escape

__all__ = ["Birth", "Disposal", "Seen", "birth_of"]


class Birth(NamedTuple):
    """What is known of a birth.

    Attributes
    ----------
    places : tuple of Mark
        The place in user code, and those that led to it, innermost first.
    at_s : float
        When, by ``time.monotonic()``.
    closings : int
        How many scopes had been closed until then.
    scope : str or None
        The name of the scope, ``""`` for one without a name, None outside every scope.
    op : str or None
        The call that made it, where it is known.
    passes : int
        How many passes were over until then.
    thread : str
        The name of the thread.
    weight : float
        How many births it stands for: more than 1 where births are sampled.
    site_number : int
        The number of its site in the log.
    number : int
        Its own number among all births.
    device : str
        Where it was born.
    """

    places: tuple[Mark, ...]
    at_s: float
    closings: int
    scope: str | None
    op: str | None
    passes: int
    thread: str
    weight: float
    site_number: int
    number: int
    device: str

    @property
    def mark(self) -> Mark | None:
        """The innermost place."""
        return self.places[0] if self.places else None


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
    birth : Birth
        What is known of its birth.
    number : int
        The number of its birth: two are the same that have the same.
    """

    __slots__ = ("__weakref__", "_escape", "_reference", "birth", "device", "identity", "kind", "nbytes", "number")

    key: Final = None

    def __init__(
        self,
        identity: Hashable,
        kind: str,
        device: str,
        nbytes: int,
        birth: Birth,
        number: int,
        reference: Callable[[], object],
        escape: Callable[[Seen], Escape | None] | None = None,
    ) -> None:
        self.identity = identity
        self.kind = kind
        self.device = device
        self.nbytes = nbytes
        self.birth = birth
        self.number = number
        self._reference = reference
        self._escape = escape

    @property
    def escape(self) -> Escape | None:
        """In which way it has outlived its scope or its tensor: to be asked while it is there."""
        return None if self._escape is None else self._escape(self)

    def __call__(self) -> Seen | None:
        return None if self._reference() is None else self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and other.number == self.number and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes of {self.kind} on {self.device}>"


def birth_of(row: Row, sites: dict[int, tuple[str, str, str | None, tuple[Mark, ...]]]) -> Birth:
    """A row of the log in words; `sites` remembers what was asked of the log before."""
    number = row[0]
    told = sites.get(number)
    if told is None:
        told = sites[number] = LOG.site(number)[:4]
    # Past the constructor, which takes twice as long.
    return _made(Birth, (told[3], row[5], row[4], row[6], told[2], row[3], row[7], row[8], number, row[2], told[1]))


_tuple: Any = tuple
_made: Final[Callable[[type[Birth], tuple[object, ...]], Birth]] = _tuple.__new__
