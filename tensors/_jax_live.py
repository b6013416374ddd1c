"""The arrays of JAX that are there: what the process has, which of them are known, and where their memory is."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final, final
from weakref import ref

from ..scopes._entries import DEAD, LIVE

__all__ = ["ARRAY", "SEEN", "addresses_of", "live_arrays", "pass_over", "unknown_arrays"]

_bridge: Final[Any] = import_module("jax._src.xla_bridge")
_jax: Final[Any] = import_module("jax")
ARRAY: Final[Any] = import_module("jax._src.array").ArrayImpl
"""The class of arrays that have memory."""


@final
class _Seen(ref[Any]):
    """A weak reference to an array that is no scope's by birth."""

    __slots__ = ("key",)
    key: int


SEEN: Final[dict[int, _Seen]] = {}
"""Arrays that no scope owns by birth, by id."""


def _forget(entry: _Seen, seen: dict[int, _Seen] = SEEN) -> None:
    if seen.get(entry.key) is entry:
        del seen[entry.key]


def live_arrays() -> list[Any]:
    """Every array of the process, on all its devices. Starts no device that the program has not started."""
    if not _bridge.backends_are_initialized():
        return []
    return [array for backend in list(_bridge.backends()) for array in _jax.live_arrays(backend)]


def unknown_arrays() -> list[Any]:
    """Those that have been met nowhere yet."""
    return [
        array for array in live_arrays() if id(array) not in LIVE and id(array) not in SEEN and id(array) not in DEAD
    ]


def pass_over(array: Any) -> None:
    """Let no scope own an array by birth."""
    entry = _Seen(array, _forget)
    entry.key = id(array)
    SEEN[entry.key] = entry


def addresses_of(array: Any) -> set[int]:
    """Where its memory begins, on each device; nowhere for what is empty or deleted."""
    if array.is_deleted() or array.nbytes == 0:
        return set()
    parts: Iterable[Any] = [array] if len(array.devices()) == 1 else array._arrays
    return {part.unsafe_buffer_pointer() for part in parts}
