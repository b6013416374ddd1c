"""The log of births of this process: what was born, where, in which scope, and what became of it.

The log itself is compiled; here are its rows, its version in Python, the facts that are the same for all births of a
site, and what is known of a disposal and of memory that was seen to be born.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from contextvars import ContextVar
from importlib import import_module
from itertools import chain, count
from sys import _getframe
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final
from weakref import getweakrefs, ref

from ...scopes.context import CURRENT, resolve
from ...scopes.identity import Entry, device_of_entry, storages_of
from ...scopes.sites import GENERATED, KEEPER, PASSING, THROUGH, USER, Mark, Site, rank_of, site_of

if TYPE_CHECKING:
    from ...scopes.kinds import Kind, Layout
    from ...scopes.scope import DisposeScope

__all__ = [
    "CLOSINGS",
    "DISPOSALS",
    "LOG",
    "NUMBER",
    "ROWS",
    "SCOPE",
    "SITE",
    "WEIGHT",
    "BirthLog",
    "Disposal",
    "Escape",
    "Escaping",
    "KindRow",
    "Row",
    "RowList",
    "Rows",
    "Seen",
    "SiteFacts",
    "SiteRow",
    "Sites",
    "Subject",
    "Told",
    "UnheldMemory",
    "is_referenced",
    "joined",
    "see",
]

# What a record is of: a resource, or memory that no resource stands for.


Escape = Literal["due", "disposed"]
"""Memory that outlived its scope, or its tensor, which was disposed."""


class UnheldMemory(Protocol):
    """Memory that was seen to be born, known by itself: a plain array's, or the storage of a tensor that is gone.

    It is not kept alive. Called, it tells whether it is there yet: it gives itself, or None.
    """

    @property
    def identity(self) -> Hashable:
        """As `Kind.storages` tells it of a tensor that uses the memory."""
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
        """In which way it has outlived its scope, or its tensor; None where it has not, or was moved out."""
        ...

    def __call__(self) -> object:
        """Itself, or None where it is gone."""
        ...


Subject: TypeAlias = Entry | UnheldMemory

# The rows of many births at once.


SITE: Final = 0
NUMBER: Final = 2
CLOSINGS: Final = 3
SCOPE: Final = 5
WEIGHT: Final = 6
"""Columns of a row."""


class Rows(Protocol):
    """Some rows, compiled or not. None stands for a birth that nobody saw."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Row | None: ...

    def __iter__(self) -> Iterator[Row | None]: ...

    def column(self, column: int, places: list[int], /) -> list[Any]:
        """One column of the rows at some places, those left out that nobody saw."""
        ...


class RowList(list["Row | None"]):
    """Rows that Python put together."""

    __slots__ = ()

    def column(self, column: int, places: list[int], /) -> list[Any]:
        """One column of the rows at some places, those left out that nobody saw."""
        return [row[column] for place in places if (row := self[place]) is not None]


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several, one after the other."""
    parts = [part for part in parts if len(part)] or parts[:1]
    whole: Any = parts[0]
    if len(parts) > 1:
        if any(type(part) is RowList for part in parts):
            return RowList(chain.from_iterable(parts))
        for part in parts[1:]:
            whole = whole + part
    rows: Rows = whole
    return rows


# The birth log in Python, for where the compiled one could not be built. Slower and bigger, and
# otherwise the same.


_Place = tuple[CodeType, int]
_Key = tuple[str, str, str | None, tuple[_Place, ...]]
_POINTS: Final = 256


class Sighting(ref[Any]):
    """A weak reference to what stands for memory, with what is known of its birth."""

    __slots__ = ("escaped", "excluded", "let_out", "row")
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    row: _Row | None
    excluded: bool
    escaped: bool
    let_out: bool


@final
class _Row:
    """What is known of one birth."""

    __slots__ = (
        "at_s",
        "backed",
        "closings",
        "is_member",
        "nbytes",
        "order",
        "scope",
        "site",
        "weight",
    )

    site: int
    nbytes: int
    order: int
    closings: int
    at_s: float
    scope: str | None
    weight: float
    backed: bool
    is_member: bool

    def told(self) -> Row:
        """As a tuple."""
        return (
            self.site,
            self.nbytes,
            self.order,
            self.closings,
            self.at_s,
            self.scope,
            self.weight,
        )


@final
class _Site:
    """What one line, with those that led to it, made of one kind on one device."""

    __slots__ = ("births", "key", "live", "nbytes", "peak_nbytes", "series")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.births = 0
        self.live = 0.0
        self.nbytes = 0
        self.peak_nbytes = 0
        # By name of pass: the pass of the first point over the stride, and the points.
        self.series: dict[str, tuple[int, list[tuple[int, int]]]] = {}

    def point(self) -> tuple[int, int]:
        """What lives now."""
        return max(0, int(self.live + 0.5)), self.nbytes


@final
class BirthLog:
    """The log. Its methods are described in ``compiled.pyi``."""

    api = None
    _rank: Callable[[CodeType, dict[str, Any]], int]
    _kind_row: Callable[[Any], KindRow]
    _measure: Callable[[Any], tuple[int, str]]
    _current: ContextVar[DisposeScope | None]
    _resolve: Callable[[DisposeScope], DisposeScope | None]
    _disposals: dict[Entry, Any]

    def __init__(self) -> None:
        self._open = False
        self._frames = 1
        self._rate = 0
        self._until = 0.0
        self._random = random.Random()
        # Never taken by what a collection can call: a death only takes things out of dicts.
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._births = self._marks = self._closings = self._cleared_at = self._escapes = 0
        self._ranks: dict[int, tuple[CodeType, int]] = {}
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[Any, _Row] = {}
        self._sightings: dict[Sighting, None] = {}
        self._sites: list[_Site] = []
        self._index: dict[_Key, int] = {}
        self._nbytes: dict[str, int] = {}
        self._passes: dict[str, tuple[int, int]] = {}
        self._first: dict[tuple[CodeType, int], _Place] = {}

    def bind(
        self,
        rank: Callable[[CodeType, dict[str, Any]], int],
        kind_row: Callable[[Any], KindRow],
        measure: Callable[[Any], tuple[int, str]],
        current: ContextVar[DisposeScope | None],
        resolve: Callable[[DisposeScope], DisposeScope | None],
        disposals: dict[Entry, Any],
        entry: type[Entry],
    ) -> None:
        """Learn what tells of code, kinds, resources and scopes."""
        self._rank, self._kind_row, self._measure = rank, kind_row, measure
        self._current, self._resolve = current, resolve
        self._disposals = disposals

    def open(self, frames: int, sample_nbytes: int) -> None:
        """Put births down from now on."""
        self._frames = max(1, frames)
        self._rate = sample_nbytes
        self._until = self._random.expovariate(1 / sample_nbytes) if sample_nbytes else 0.0
        self._open = True

    def close(self) -> None:
        """Put no more births down."""
        self._open = False

    def clear(self) -> None:
        """Forget everything."""
        self._cleared_at = self._births
        self._forget()

    def cleared_at(self) -> int:
        """The number of the last birth that was forgotten with everything else."""
        return self._cleared_at

    def born(self, entry: Entry) -> None:
        """Put the birth of a resource down."""
        if not self._open:
            return
        name, weigh, memory, device, backed = self._kind_row(entry.kind)
        nbytes = 0
        if memory is not None:
            if self._told_by_its_memory(entry, name, memory):
                return
        elif weigh is not None:
            resource = entry()
            try:
                nbytes = 0 if resource is None else weigh(resource)
            except Exception:  # released by another thread meanwhile: then it has no bytes
                nbytes = 0
            del resource
        else:
            nbytes, device = self._measure(entry)
        if not self._is_kept(nbytes):
            return
        site = self._site_here(None, name, device, _getframe(1))
        if site is None:
            return
        owner = entry.owner
        row = self._row(site, nbytes, None if owner is None else owner.name or "", backed)
        self._put(entry, row)
        for member in entry.members:
            if member not in self._rows:
                part = self._row(site, 0, row.scope, True)
                part.order, part.is_member = row.order, True
                self._rows[member] = part

    def died(self, entry: Entry) -> None:
        """Forget a resource."""
        self._disposals.pop(entry, None)
        row = self._rows.pop(entry, None)
        if row is not None and not row.is_member:
            self._count(row, -1)

    def released(self, entry: Entry) -> bool:
        """A resource was disposed: it has no bytes any more."""
        row = self._rows.get(entry)
        if row is None:
            return False
        if not row.is_member:
            self._count(row, -1)
            row.nbytes = 0
            self._count(row, 1)
        return True

    def sight(self, anchor: object, op: str | None, nbytes: int, kind: str, device: str) -> bool:
        """Put the birth of memory down, once."""
        if self._sighting(anchor) is not None:
            return True
        if not self._open or not self._is_kept(nbytes):
            return False
        site = self._site_here(op, kind, device, _getframe(1))
        sighting = Sighting(anchor, self._gone)
        sighting.row, sighting.excluded = None, site is None
        sighting.escaped = sighting.let_out = False
        self._sightings[sighting] = None
        if site is not None:
            scope = self._current.get()
            if scope is not None and not scope._direct:
                scope = self._resolve(scope)
            sighting.row = self._row(site, nbytes, None if scope is None else scope.name or "", False)
            self._count(sighting.row, 1)
        return True

    def exclude(self, anchor: object) -> bool:
        """Tell no more of some memory."""
        sighting = self._sighting(anchor)
        if sighting is None or sighting.excluded or sighting.row is None:
            return False
        sighting.excluded = True
        self._count(sighting.row, -1)
        return True

    def escape(self, memory: object) -> None:
        """The tensor of some memory was disposed."""
        sighting = self._sighting(memory)
        if sighting is not None:
            sighting.escaped = True
            self._escapes += 1

    def escapes(self) -> int:
        """How often `escape` was called of memory that is known."""
        return self._escapes

    def let_out(self, memory: object) -> None:
        """Some memory was moved out under another name than that of its tensor."""
        sighting = self._sighting(memory)
        if sighting is not None:
            sighting.let_out = True

    def has_escaped(self, memory: object) -> bool:
        """Whether the tensor of some memory was disposed, and the memory was not moved out."""
        sighting = self._sighting(memory)
        return sighting is not None and sighting.escaped and not sighting.let_out

    def recall(self, key: Entry) -> Row | None:
        """What is known of a resource."""
        row = self._rows.get(key)
        return None if row is None else row.told()

    def recall_block(self, address: int) -> Row | None:
        """Nothing: see `blocks`."""
        return None

    def is_in_use(self, address: int, number: int) -> bool:
        """No: see `blocks`."""
        return False

    def recall_memory(self, anchor: object) -> Row | None:
        """What is known of memory."""
        sighting = self._sighting(anchor)
        return None if sighting is None or sighting.excluded or sighting.row is None else sighting.row.told()

    def entries(self, after: int, until: int) -> tuple[list[Entry], Rows]:
        """The known resources of a window of births, in the order of birth."""
        found = [(row.order, entry, row) for entry, row in self._rows.copy().items() if after < row.order <= until]
        found.sort(key=lambda item: item[0])
        return [entry for _, entry, _ in found], RowList([row.told() for _, _, row in found])

    def blocks(self, after: int, until: int) -> tuple[list[int], Rows]:
        """None: the arena, being compiled, tells only the compiled log of its blocks."""
        return [], RowList()

    def sightings(self, after: int, until: int) -> tuple[list[ref[Any]], Rows]:
        """The known memory of a window of births."""
        found: list[ref[Any]] = []
        rows = RowList()
        for sighting in self._sightings.copy():
            if sighting.row is not None and not sighting.excluded and after < sighting.row.order <= until:
                found.append(sighting)
                rows.append(sighting.row.told())
        return found, rows

    def key_of(self, identity: Hashable) -> Hashable:
        """The identity itself."""
        return identity

    def counts(self) -> tuple[int, int, int, int]:
        """Births, passes, closings, and how many births are known."""
        return self._births, self._marks, self._closings, len(self._rows) + len(self._sightings)

    def closing(self) -> int:
        """A scope was closed."""
        with self._lock:
            self._closings += 1
            return self._closings

    def mark(self, name: str) -> int:
        """A pass is over."""
        with self._lock:
            self._marks += 1
            number, stride = self._passes.get(name, (0, 1))
            number += 1
            if number // stride >= _POINTS and number % stride == 0:
                stride *= 2
                for site in self._sites:
                    if name in site.series:
                        first, points = site.series[name]
                        site.series[name] = (first + 1) // 2, points[first % 2 :: 2]
            self._passes[name] = number, stride
            if number % stride == 0:
                for site in self._sites:
                    if name in site.series:
                        site.series[name][1].append(site.point())
                    elif site.live >= 0.5:
                        site.series[name] = number // stride, [site.point()]
            return number

    def passes(self) -> dict[str, int]:
        """How many passes of each name there were."""
        return {name: number for name, (number, _) in self._passes.items()}

    def series(self, site: int, name: str) -> list[tuple[int, int, int]]:
        """Pass, live count and live bytes of a site over the passes of a name."""
        if name not in self._passes or site >= len(self._sites) or name not in self._sites[site].series:
            return []
        number, stride = self._passes[name]
        first, points = self._sites[site].series[name]
        told = [((first + at) * stride, *point) for at, point in enumerate(points)]
        if not told or told[-1][0] < number:
            told.append((number, *self._sites[site].point()))
        return told

    def site(self, number: int) -> SiteRow:
        """What is known of a site."""
        if number >= len(self._sites):
            raise IndexError(f"there are {len(self._sites)} sites, and no number {number}")
        site = self._sites[number]
        kind, device, op, places = site.key
        return kind, device, op, places, site.births, site.live, site.nbytes, site.peak_nbytes

    def site_count(self) -> int:
        """How many sites there are."""
        return len(self._sites)

    def live_nbytes(self) -> dict[str, int]:
        """The live bytes of each device."""
        return {device: nbytes for device, nbytes in self._nbytes.items() if nbytes}

    def place(self) -> _Place | None:
        """The innermost place in user code of the calling thread."""
        places = self._places(_getframe(1), 1)[0]
        return places[0] if places else None

    # ------------------------------------------------------------------ inside

    def _is_kept(self, nbytes: int) -> bool:
        if not self._rate:
            return True
        self._until -= nbytes
        if self._until > 0:
            return False
        self._until = self._random.expovariate(1 / self._rate)
        return True

    def _row(self, site: int, nbytes: int, scope: str | None, backed: bool) -> _Row:
        row = _Row()
        row.site, row.nbytes, row.scope, row.backed, row.is_member = site, nbytes, scope, backed, False
        row.closings, row.at_s = self._closings, time.monotonic()
        row.weight = 1 / -math.expm1(-nbytes / self._rate) if self._rate and nbytes else 1.0
        row.order = self._births = next(self._numbers)
        return row

    def _put(self, entry: Entry, row: _Row) -> None:
        self.died(entry)
        self._rows[entry] = row
        self._count(row, 1)

    def _count(self, row: _Row, sign: int) -> None:
        if row.site >= len(self._sites):
            return
        site = self._sites[row.site]
        share = sign * int(row.nbytes * row.weight)
        site.births += sign > 0
        site.live += sign * row.weight
        site.nbytes += share
        site.peak_nbytes = max(site.peak_nbytes, site.nbytes)
        if not row.backed:
            device = site.key[1]
            self._nbytes[device] = self._nbytes.get(device, 0) + share

    def _gone(self, sighting: Sighting) -> None:
        if self._sightings.pop(sighting, self) is None and sighting.row is not None and not sighting.excluded:
            self._count(sighting.row, -1)

    def _sighting(self, anchor: object) -> Sighting | None:
        for reference in getweakrefs(anchor):
            if type(reference) is Sighting and reference in self._sightings:
                return reference
        return None

    def _told_by_its_memory(self, entry: Entry, name: str, memory: Callable[[Any], object]) -> bool:
        resource = entry()
        anchor = None if resource is None else memory(resource)
        del resource
        if anchor is None:
            return False
        if self._sighting(anchor) is None:
            nbytes, device = self._measure(entry)
            if nbytes:
                self.sight(anchor, None, nbytes, name, device)
        row = self.recall_memory(anchor)
        return row is not None and row[2] == self._births

    def _site_here(self, op: str | None, kind: str, device: str, frame: FrameType | None) -> int | None:
        places, called, keeps = self._places(frame, self._frames)
        if keeps:
            return None
        key = (kind, device, op if op is not None or called is None else called.co_name, places)
        number = self._index.get(key)
        if number is None:
            with self._lock:
                number = self._index.get(key)
                if number is None:
                    self._sites.append(_Site(key))
                    number = self._index[key] = len(self._sites) - 1
        return number

    def _rank_of(self, frame: FrameType) -> int:
        code = frame.f_code
        known = self._ranks.get(id(code))
        if known is None:
            known = self._ranks[id(code)] = code, self._rank(code, frame.f_globals)
        return known[1]

    def _places(self, frame: FrameType | None, wanted: int) -> tuple[tuple[_Place, ...], CodeType | None, bool]:
        found: list[_Place] = []
        generated: _Place | None = None
        outermost: _Place | None = None
        called: CodeType | None = None
        innermost = True
        while frame is not None and len(found) < wanted:
            if frame.f_globals is globals():
                frame = frame.f_back
                continue
            rank = self._rank_of(frame)
            if rank == KEEPER and innermost:
                return (), None, True
            if innermost and rank in (THROUGH, PASSING):
                frame = frame.f_back
                if rank == THROUGH and frame is not None:
                    called, frame = frame.f_code, frame.f_back
                continue
            innermost = False
            here = frame.f_code, frame.f_lasti
            if rank == USER:
                # One line has several instructions, and the interpreter moves among them while it specialises a call.
                found.append(self._first.setdefault((frame.f_code, frame.f_lineno), here))
            elif not found:
                outermost = here
                if rank == GENERATED:
                    generated = generated or here
                else:
                    called = frame.f_code
            frame = frame.f_back
        if not found:
            last = generated or outermost
            return (() if last is None else (last,)), None, False
        return tuple(found), called, False


# The one birth log of the process, compiled where that could be built.


Row = tuple[int, int, int, int, float, str | None, float]
"""What is known of a birth: number of its site, bytes, its own number, closings of scopes until then, time by
``time.monotonic()``, name of the scope (``""`` without a name, None outside every scope), and how many births it stands
for: 1, or more where births are sampled."""

KindRow = tuple[str, Callable[[Any], int] | None, Callable[[Any], object] | None, str, bool]
"""What the log asks of a kind: its name; what tells the bytes of an instance, in one quick call, or None; what gives
the object that stands for its memory, or None; its device, where there is only one; whether its bytes are those of
memory that is seen to be born by itself."""

SiteRow = tuple[str, str, str | None, tuple[tuple[CodeType, int], ...], int, float, int, int]
"""What is known of a site: kind, device, the call, its places (innermost first), how many were born, how many live,
their bytes now, and the most at once."""

DISPOSALS: Final[dict[Entry, tuple[Disposal, Row]]] = {}
"""Of the disposed resources that were seen to be born: where they were disposed, and the row of their birth.
The log takes out what has died."""

ROWS: Final[dict[int, KindRow]] = {}
"""By ``id`` of a kind, what the floor above has to say of it: a kind of its own, which lives as long as the process."""


def _compiled() -> Any:
    if os.environ.get("DISPOSESCOPE_PURE_BIRTHLOG"):
        return None
    try:
        return import_module(".compiled", __package__)
    except ImportError:
        return None


LOG: Final[Any] = _compiled() or BirthLog()
"""The log: ``compiled.pyi`` describes it."""


def _kind_row(kind: Kind) -> KindRow:
    row = ROWS.get(id(kind))
    if row is None:
        # A composite has the bytes of its members, which were born before it.
        row = kind.name, None, None, "", kind.members is not None
    return row


def _measure(entry: Entry) -> tuple[int, str]:
    storages: dict[Hashable, int] = {}
    storages_of(entry, storages)
    return sum(storages.values()), device_of_entry(entry)


LOG.bind(rank_of, _kind_row, _measure, CURRENT, resolve, DISPOSALS, Entry)
if hasattr(os, "register_at_fork"):
    # What the parent knew is the parent's to tell.
    os.register_at_fork(after_in_child=LOG.clear)

# What is the same for all births of a site, in words.


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
        """The facts of the site of a number."""
        facts = self._known.get(number)
        if facts is None:
            kind, device, op, places, made, *_ = LOG.site(number)
            frames = tuple(site for place in places if (site := self.line(place)) is not None)
            facts = SiteFacts(frames[0] if frames else None, frames, kind, device, op, made)
            self._known[number] = facts
        return facts

    def line(self, mark: Mark | None) -> Site | None:
        """The line of a place; the same object for the same place."""
        if mark is None:
            return None
        try:
            return self._lines[mark]
        except KeyError:
            site = self._lines[mark] = site_of(mark)
            return site


# What a detector knows of a disposal, and of memory that was seen to be born.


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
        """Return this object as long as the memory is there, and then None, as a weak reference does."""
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
