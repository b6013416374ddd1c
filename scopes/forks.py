"""What happens at a fork: locks that are held across it, and functions that are called."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

__all__ = [
    "at_forks",
    "hold_across_forks",
]


class _Lock(Protocol):
    @property
    def acquire(self) -> Callable[[], object]: ...
    @property
    def release(self) -> Callable[[], object]: ...


_held: Final[list[tuple[int, _Lock]]] = []


def _nothing() -> None:
    """What is called where nothing is to be done."""


def hold_across_forks(lock: _Lock, order: int) -> None:
    """Have every fork of the process wait for a lock, and hold it until there are parent and child.

    A child would wait forever for a lock that a thread holds which it does not have.

    Parameters
    ----------
    lock : threading.Lock or threading.RLock
        The lock.
    order : int
        Those with a lower number are acquired earlier. Whoever holds one may acquire those with
        higher numbers.
    """
    _held.append((order, lock))
    _held.sort(key=itemgetter(0))


def at_forks(
    *,
    before: Callable[[], object] = _nothing,
    in_parent: Callable[[], object] = _nothing,
    in_child: Callable[[], object] = _nothing,
) -> None:
    """Call functions at every fork: before it those of later calls first, and after it those of earlier ones."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _acquire() -> None:
    for _, lock in _held:
        lock.acquire()


def _release() -> None:
    for _, lock in reversed(_held):
        lock.release()


at_forks(before=_acquire, in_parent=_release, in_child=_release)
