"""Counts of what happened, by thread and by process, and the frozen row that reports them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, final
from weakref import WeakSet

from .extension import COMPILED
from .forks import hold_across_forks

__all__ = [
    "COUNTERS",
    "LOCAL",
    "DeviceStatistics",
    "Ledger",
    "Statistics",
    "clear_process",
    "counts_of_process",
]

COUNTERS: Final = (
    "created_in_scope",
    "created_unscoped",
    "disposed_in_scope",
    "disposed_unscoped",
    "attached",
    "detached",
    "moved",
    "graphs_kept",
)


@final
@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """What lives on one device: a number of resources, and the bytes of their storages, each counted once."""

    live: int = 0
    live_nbytes: int = 0


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """What was created, disposed and moved since the last reset, and what lives now.

    A composite counts as one. Events count on the thread where they happen; `live` and
    `live_nbytes` count what was born on the thread (or first attached there). Plain arrays are not
    counted here.

    Attributes
    ----------
    created_in_scope, created_unscoped : int
        Resources born while a scope was current, and outside every scope.
    disposed_in_scope, disposed_unscoped : int
        Resources that were released or died by reference count, by whether a scope owned them then.
    attached, detached : int
        Unowned resources that got an owner; owned ones that lost theirs without being released.
    moved : int
        Changes of owner from one scope to another.
    graphs_kept : int
        Moves and detachments in which a resource left its scope with an autograd graph behind it.
    live : int
        Resources alive now: the size of an identity set, not a difference of counters.
    live_nbytes : int
        The bytes of their storages, each storage once.
    by_device : Mapping of str to DeviceStatistics
        The same two for each device, under its normalised name (``"cpu:0"``). Read-only.
    """

    created_in_scope: int = 0
    created_unscoped: int = 0
    disposed_in_scope: int = 0
    disposed_unscoped: int = 0
    attached: int = 0
    detached: int = 0
    moved: int = 0
    graphs_kept: int = 0
    live: int = 0
    live_nbytes: int = 0
    by_device: Mapping[str, DeviceStatistics] = field(default_factory=lambda: MappingProxyType({}), kw_only=True)

    def __reduce__(self) -> tuple[Any, ...]:
        counts = tuple(getattr(self, name) for name in (*COUNTERS, "live", "live_nbytes"))
        return statistics_of, (counts, dict(self.by_device))

    def __deepcopy__(self, _memo: object) -> Statistics:
        return self


def statistics_of(counts: tuple[int, ...], by_device: dict[str, DeviceStatistics]) -> Statistics:
    """The row of counts in the order of its fields, and what lives on each device."""
    return Statistics(*counts, by_device=MappingProxyType(by_device))


@final
class Ledger:
    """The counters of one thread.

    Only that thread adds to them, so that no count is lost and none needs a lock.

    What the compiled paths count stands beside them, in `compiled`. The object in `period` stands
    for the time since they were set to zero: what was counted in another period is no longer in
    them.
    """

    __slots__ = ("__weakref__", "compiled", "period", *COUNTERS)

    compiled: Any
    period: object

    created_in_scope: int
    created_unscoped: int
    disposed_in_scope: int
    disposed_unscoped: int
    attached: int
    detached: int
    moved: int
    graphs_kept: int

    def __init__(self) -> None:
        self.compiled = COMPILED.Counts()
        self.clear()

    # Bound here, because module globals may be gone when a thread's dies at interpreter exit.
    def clear(self, _counters: tuple[str, ...] = COUNTERS) -> None:
        """Set all counters to zero, and begin a new period."""
        self.period = object()
        for counter in _counters:
            setattr(self, counter, 0)
        self.compiled.clear()

    def count_birth(self, *, in_scope: bool) -> object:
        """Count a birth. Returns what its entry has as `counted`."""
        if in_scope:
            self.created_in_scope += 1
            return self.period
        self.created_unscoped += 1
        return True

    def counts(self, _counters: tuple[str, ...] = COUNTERS) -> tuple[int, ...]:
        """The counters, in the order of `COUNTERS`."""
        counts = [getattr(self, counter) for counter in _counters]
        for place, count in enumerate(self.compiled.values()):
            counts[place] += count
        return tuple(counts)


_ledgers: Final[WeakSet[Ledger]] = WeakSet()
_retired: Final[list[tuple[int, ...]]] = []
"""What the threads that have ended counted.

Only appended to and popped from, which needs no lock.
"""


_MANY: Final = 1000
_lock: Final = threading.RLock()
"""Held while threads come, go and are summed up.

Re-entrant: a collection can end a thread's ledger meanwhile.
"""
# A collection may end a thread's ledger wherever another lock is held.
hold_across_forks(_lock, 3)


class _Local(threading.local):
    def __init__(self) -> None:
        self.ledger = Ledger()
        self._retire = _Retire(self.ledger)
        with _lock:
            _ledgers.add(self.ledger)


class _Retire:
    """Dies with its thread, and keeps what the thread counted."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # Bound here, because module globals may be gone when the main thread's dies at interpreter
    # exit.
    def __del__(
        self,
        retired: list[tuple[int, ...]] = _retired,
        many: int = _MANY,
        lock: Any = _lock,
        forget: Any = COMPILED.forget_ledger,
    ) -> None:
        ledger = self._ledger
        forget(ledger)
        with lock:
            retired.append(ledger.counts())
            # Resources born on the thread still name the ledger as their home: it must not be
            # counted twice.
            ledger.clear()
            if len(retired) > many:
                _sum_of_retired()


LOCAL: Final = _Local()
"""``LOCAL.ledger`` is the ledger of the calling thread."""


def counts_of_process() -> tuple[int, ...]:
    """The sums over all threads, those that have ended included, in the order of `COUNTERS`."""
    with _lock:
        return _sums([_sum_of_retired(), *(ledger.counts() for ledger in list(_ledgers))])


def _sum_of_retired() -> tuple[int, ...]:
    """Make one row of those of all ended threads, and return it."""
    total = _sums(_retired)
    _retired[:] = [total]
    return total


def clear_process() -> None:
    """Set the counters of every thread to zero."""
    with _lock:
        _retired.clear()
        for ledger in list(_ledgers):
            ledger.clear()


def _sums(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True)) if rows else (0,) * len(COUNTERS)
