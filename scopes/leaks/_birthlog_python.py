"""The birth log in Python, for where the compiled one could not be built. Slower and bigger, and otherwise the same."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from sys import _getframe
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, final
from weakref import getweakrefs, ref

from ._rows import RowList
from ._site import GENERATED, KEEPER, PASSING, THROUGH, USER

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .._entry import Entry
    from .._scope import DisposeScope
    from ._log import KindRow, Row, SiteRow
    from ._rows import Rows

__all__ = ["BirthLog"]

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
    """The log. Its methods are described in ``_birthlog.pyi``."""

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
