"""The birth log, compiled: what is known of every resource and every piece of memory that was seen to be born.

It is the one log of the process. Elsewhere it is imported as ``log.LOG``.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeAlias, final
from weakref import ref

from ...scopes.identity import Entry
from ...scopes.kinds import Kind

SiteRow: TypeAlias = tuple[str, str, str | None, tuple[tuple[CodeType, int], ...], int, float, int, int]
"""What is known of a site: kind, device, the call, its places (innermost first), how many were born,
how many live, their bytes now, and the most at once."""

api: object
"""A capsule for the compiled parts of other rooms: see ``src/api.h``."""

disposals: dict[Entry, Any]
"""What somebody keeps of disposed resources; the log takes out those that have died."""

@final
class Row:
    """What is known of a birth.

    Attributes
    ----------
    site : int
        The number of its site.
    nbytes : int
        Its bytes.
    number : int
        Its own number: births are numbered in their order.
    closings : int
        How many scopes had been closed until then.
    at_s : float
        When, by ``time.monotonic()``.
    scope : str or None
        The name of the scope: ``""`` for one without a name, None outside every scope.
    weight : float
        How many births it stands for: 1, or more where births are sampled.
    """

    @property
    def site(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def closings(self) -> int: ...
    @property
    def at_s(self) -> float: ...
    @property
    def scope(self) -> str | None: ...
    @property
    def weight(self) -> float: ...

@final
class Sighting(ref[Any]):
    """A weak reference to what stands for memory, with what is known of its birth."""

# ------------------------------------------------------------------ the log as a whole

def describe_kind(
    kind: Kind,
    name: str,
    weigh: Callable[[Any], int] | None,
    memory: Callable[[Any], object] | None,
    device: str,
    backed: bool,
    /,
) -> None:
    """Say what is to be known of the births of a kind, which lives as long as the process.

    Parameters
    ----------
    kind, name : Kind, str
        The kind, and the name that reports use for it.
    weigh : callable, optional
        Returns the bytes of an instance, in one quick call. Left out, they are those of its storages.
    memory : callable, optional
        Returns the object that stands for the memory of an instance, whose birth is recorded instead.
    device : str
        The device of all instances; used with `weigh` alone.
    backed : bool
        Whether its bytes are those of memory that is seen to be born by itself.
    """

def open(frames: int, sample_nbytes: int, /) -> None:
    """Record births from now on, with so many frames; every one, or one for so many bytes."""

def close() -> None:
    """Record no more births. Deaths of what is known are still recorded."""

def clear() -> None:
    """Forget everything."""

def cleared_at() -> int:
    """Return the number of the last birth that was forgotten with everything else."""

def counts() -> tuple[int, int, int, int]:
    """Return the number of the last birth, passes and closings of scopes until now, and how many births are known."""

# ------------------------------------------------------------------ births and deaths

def born(entry: Entry, /) -> None:
    """Record the birth of a resource."""

def died(entry: Entry, /) -> None:
    """Forget a resource."""

def released(entry: Entry, /) -> bool:
    """Record that a resource was disposed: it has no bytes any more. Return whether it is known."""

def sight(anchor: object, op: str | None, nbytes: int, kind: str, device: str | None, /) -> bool:
    """Record the birth of memory, whose end is that of `anchor`; once. Return whether it is known now."""

def exclude(anchor: object, /) -> bool:
    """Report some memory no more. Return whether it was reported until now."""

def escape(memory: object, /) -> None:
    """Record that the tensor of some memory was disposed.

    The memory is given by what stands for it, or by the address of a block.
    """

def let_out(memory: object, /) -> None:
    """Record that some memory was moved out under another name than that of its tensor: it does not escape."""

def escapes() -> int:
    """Return how often `escape` was called of memory that is known."""

def has_escaped(memory: object, /) -> bool:
    """Return whether the tensor of some memory was disposed, and the memory was not moved out."""

# ------------------------------------------------------------------ what is known of births

def recall(key: Entry, /) -> Row | None:
    """Return what is known of a resource."""

def recall_block(address: int, /) -> Row | None:
    """Return what is known of a block of the arena."""

def recall_memory(anchor: object, /) -> Row | None:
    """Return what is known of memory."""

def is_in_use(address: int, number: int, /) -> bool:
    """Return whether a block of the arena is still the one of that birth."""

def entries(after: int, until: int, /) -> tuple[list[Entry], list[Row]]:
    """Return the known resources of a window of births, in the order of birth, and their rows."""

def blocks(after: int, until: int, /) -> tuple[list[int], list[Row]]:
    """Return the same for blocks of the arena, by address."""

def sightings(after: int, until: int, /) -> tuple[list[Sighting], list[Row]]:
    """Return the same for memory that an object stands for."""

def untrack(objects: list[Any], /) -> None:
    """Have the garbage collector pass over objects that cannot be part of a cycle: it would go through millions."""

# ------------------------------------------------------------------ sites and passes

def closing() -> int:
    """Record that a scope was closed. Return how many were."""

def mark(name: str, /) -> int:
    """Record that a pass is over. Return how many by that name were."""

def passes() -> dict[str, int]:
    """Return how many passes of each name there were."""

def series(site: int, name: str, /) -> list[tuple[int, int, int]]:
    """Return pass, live count and live bytes of a site over the passes of a name; what lives now is the last."""

def site(number: int, /) -> SiteRow:
    """Return what is known of a site."""

def site_count() -> int:
    """Return how many sites there are, numbered from 0."""

def live_nbytes() -> dict[str, int]:
    """Return the live bytes of each device."""

def place() -> tuple[CodeType, int] | None:
    """Return the innermost place in user code of the calling thread."""
