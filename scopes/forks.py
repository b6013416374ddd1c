"""Locks that are held across a fork: a child would wait forever for one that a thread holds which it does not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

__all__ = [
    "hold_across_forks",
]


class _Lock(Protocol):
    @property
    def acquire(self) -> Callable[[], object]: ...
    @property
    def release(self) -> Callable[[], object]: ...


_held: Final[list[tuple[int, _Lock]]] = []


def hold_across_forks(lock: _Lock, order: int) -> None:
    """Have every fork of the process wait for a lock, and hold it until there are parent and child.

    Parameters
    ----------
    lock : threading.Lock or threading.RLock
        The lock.
    order : int
        Those with a lower number are acquired earlier. Whoever holds one may acquire those with higher numbers.
    """
    _held.append((order, lock))
    _held.sort(key=itemgetter(0))


def _acquire() -> None:
    for _, lock in _held:
        lock.acquire()


def _release() -> None:
    for _, lock in reversed(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
