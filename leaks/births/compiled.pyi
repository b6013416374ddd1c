"""The birth log, compiled: what is known of every resource and every piece of memory that was seen to be born.

Absent where it could not be built; `log.BirthLog` does the same then. Ask `log.LOG` instead of importing
either.
"""

from collections.abc import Callable, Container, Hashable, Iterator
from contextvars import ContextVar
from types import CodeType
from typing import Any, final
from weakref import ref

from ...scopes.identity import Entry
from ...scopes.scope import DisposeScope
from ..report.records import Record
from .log import Escaping, KindRow, Row, Seen, SiteFacts, SiteRow, Told

api: object
"""A capsule for the compiled parts of other rooms: see ``compiled.h``."""

@final
class Sighting(ref[Any]):
    """A weak reference to what stands for memory, with what is known of its birth."""

@final
class Rows:
    """The rows of some births: see ``log.Rows``."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Row: ...
    def __iter__(self) -> Iterator[Row]: ...
    def __add__(self, other: Rows, /) -> Rows:
        """Both, one after the other."""

    def column(self, column: int, places: list[int], /) -> list[Any]:
        """One column of the rows at some places."""

def bind(
    rank: Callable[[CodeType, dict[str, Any]], int],
    kind_row: Callable[[Any], KindRow],
    measure: Callable[[Any], tuple[int, str]],
    current: ContextVar[DisposeScope | None],
    resolve: Callable[[DisposeScope], DisposeScope | None],
    disposals: dict[Entry, Any],
    entry: type[Entry],
    /,
) -> None:
    """Learn what tells of code, kinds, resources and scopes, and from where to take what has died."""

def open(frames: int, sample_nbytes: int, /) -> None:
    """Put births down from now on, with so many frames; every one, or one for so many bytes."""

def close() -> None:
    """Put no more births down. Deaths of what is known are."""

def clear() -> None:
    """Forget everything."""

def cleared_at() -> int:
    """The number of the last birth that was forgotten with everything else."""

def born(entry: Entry, /) -> None:
    """Put the birth of a resource down."""

def died(entry: Entry, /) -> None:
    """Forget a resource."""

def released(entry: Entry, /) -> bool:
    """A resource was disposed: it has no bytes any more. Whether it is known."""

def sight(anchor: object, op: str | None, nbytes: int, kind: str, device: str, /) -> bool:
    """Put the birth of memory down, whose end is that of `anchor`; once. Whether it is known now."""

def exclude(anchor: object, /) -> bool:
    """Tell no more of some memory; whether it was told of."""

def escape(memory: object, /) -> None:
    """The tensor of some memory was disposed: what stands for the memory, or the address of a block."""

def let_out(memory: object, /) -> None:
    """Some memory was moved out under another name than that of its tensor: it does not escape."""

def escapes() -> int:
    """How often `escape` was called of memory that is known."""

def has_escaped(memory: object, /) -> bool:
    """Whether the tensor of some memory was disposed, and the memory was not moved out."""

def recall(key: Entry, /) -> Row | None:
    """What is known of a resource."""

def recall_block(address: int, /) -> Row | None:
    """What is known of a block of the arena."""

def recall_memory(anchor: object, /) -> Row | None:
    """What is known of memory."""

def is_in_use(address: int, number: int, /) -> bool:
    """Whether a block of the arena is the one of that birth still."""

def is_referenced(reference: Callable[[], object], number: int, /) -> bool:
    """What ``log.is_referenced`` gives."""

def entries(after: int, until: int, /) -> tuple[list[Entry], Rows]:
    """The known resources of a window of births, in the order of birth, and their rows."""

def blocks(after: int, until: int, /) -> tuple[list[int], Rows]:
    """The same for blocks of the arena, by address."""

def sightings(after: int, until: int, /) -> tuple[list[ref[Any]], Rows]:
    """The same for memory that an object stands for."""

def key_of(identity: Hashable, /) -> Hashable:
    """By what an identity of a storage is known among others: its own, and quickly found where there are many."""

def build_records(
    record: type[Record],
    numbers: dict[Hashable, int],
    facts: Callable[[int], SiteFacts],
    now_s: float,
    closings: int,
    dead: dict[int, Entry],
    disposals: dict[Entry, Any],
    others: Callable[[Entry, Row], Record | None],
    entries: list[Entry],
    rows: Rows,
    /,
) -> tuple[list[Record], list[Entry], Rows]:
    """What `RecordBuilder.build_records` returns; `others` makes the records of what does not live by itself."""

def see(
    seen: type[Seen],
    kind: str,
    facts: Callable[[int], SiteFacts],
    but: Container[Hashable],
    identify: Callable[[Any], Told | None] | None,
    lives: Callable[[Any, int], bool],
    references: list[Any],
    rows: Rows,
    escape: Escaping | None,
    /,
) -> tuple[list[Seen], Rows]:
    """What ``log.see`` gives."""

def build_memory_records(
    record: type[Record],
    numbers: dict[Hashable, int],
    facts: Callable[[int], SiteFacts],
    now_s: float,
    closings: int,
    seen: type[Seen],
    pieces: list[Seen],
    rows: Rows,
    /,
) -> list[Record]:
    """What ``record_builder.RecordBuilder.build_memory_records`` gives."""

def counts() -> tuple[int, int, int, int]:
    """The number of the last birth, passes and closings of scopes until now, and how many births are known."""

def closing() -> int:
    """A scope was closed. How many were."""

def mark(name: str, /) -> int:
    """A pass is over. How many by that name were."""

def passes() -> dict[str, int]:
    """How many passes of each name there were."""

def series(site: int, name: str, /) -> list[tuple[int, int, int]]:
    """Pass, live count and live bytes of a site over the passes of a name; what lives now is the last."""

def site(number: int, /) -> SiteRow:
    """What is known of a site."""

def site_count() -> int:
    """How many sites there are, numbered from 0."""

def live_nbytes() -> dict[str, int]:
    """The live bytes of each device."""

def place() -> tuple[CodeType, int] | None:
    """The innermost place in user code of the calling thread."""
