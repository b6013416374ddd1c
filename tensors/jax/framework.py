"""JAX as a framework of scopes and leak detectors. Imports JAX; `install` imports this module.

A detector also sees unowned arrays that are made outside of scopes, in the ways in which scopes see
births at once: by JAX's hook, at first calls and at ``device_put``. Arrays that are made in other
ways (copies to another device) are recorded only if a scope owns them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Final, final
from weakref import ref

from ...scopes.framework import (
    Framework,
    HeldMemory,
    LibraryCache,
    LiveMemory,
    MemoryByAddress,
    MemoryFacts,
    Part,
    recording,
)
from ...scopes.identity import Entry
from ...scopes.kinds import Kind
from ...scopes.scope import DisposeScope
from .adapter import KIND, array_in_key, install
from .births import ARRAY, BIRTHS, entered, left, look, uncover

__all__ = [
    "JaxFramework",
]

_NAME: Final = "jax.Array"
"""The name of the kind in the log."""


@final
class _Anchor:
    """An object that stands for an array in the log, and lives as long as the array."""

    __slots__ = ("__weakref__", "array")

    array: ref[Any]


_ANCHORS: Final[dict[int, _Anchor]] = {}
"""The anchors of unowned arrays, by the ``id`` of the array."""


def _forget(key: int, reference: ref[Any], anchors: dict[int, _Anchor] = _ANCHORS) -> None:
    anchor = anchors.get(key)
    if anchor is not None and anchor.array is reference:
        del anchors[key]


@final
class JaxFramework(Framework):
    """JAX."""

    module = "jax"
    packages = ("jaxlib",)
    caches = (
        LibraryCache(
            r"module (?:jax|jaxlib)\b(?![\w.]*\.(?:pytree|tree_util)\b)|<(?:PjitFunction|WeakrefLRUCache)",
            "a cache of JAX",
            "jax.clear_caches()",
        ),
    )

    def __init__(self) -> None:
        self._log: Any = None
        self._by_address = MemoryByAddress(_span_of)

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of ``jax.Array``."""
        return [KIND]

    def install(self) -> None:
        """Record births from now on."""
        install()

    def scope_entered(self, scope: DisposeScope, /) -> None:
        """Find arrays that were born unseen before the block."""
        entered(scope)

    def scope_left(self, scope: DisposeScope, /) -> None:
        """Find arrays that were born unseen in the block."""
        left(scope)

    def find_births(self, scope: DisposeScope | None, /) -> None:
        """Find arrays that were born or deleted unseen on this thread."""
        look(scope)

    def children(self, node: Any, /) -> Iterator[tuple[str, object]] | None:
        """Return the array inside an array of random number keys."""
        return array_in_key(node)

    def start_watching(self, log: Any, /) -> None:
        """Record births on this thread from now on."""
        self._log = log
        uncover()
        BIRTHS.record = self._record_unowned

    def stop_watching(self) -> None:
        """Stop recording births."""
        BIRTHS.record = None

    def record_pending(self) -> None:
        """Make JAX drop references to NumPy arrays that it has copied.

        JAX itself would keep them until its next call.
        """
        collect = getattr(sys.modules.get("jax._src.lib"), "_xla_gc_callback", None)
        if collect is not None and BIRTHS.record is not None:
            collect()

    def borrowed_addresses(self) -> Iterator[int]:
        """Yield addresses of NumPy's blocks that are the whole memory of a recorded JAX array.

        ``device_put`` makes arrays that share the memory of a NumPy array.
        """
        if self._log is None:
            return
        for anchor in list(_ANCHORS.values()):
            span = None if self._log.recall_memory(anchor) is None else _span_of(anchor)
            row = None if span is None else self._log.recall_block(span[0])
            if span is not None and row is not None and row.nbytes <= span[1] - span[0]:
                yield span[0]

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the identity of a recorded array, on one device, that an address lies in."""
        if self._log is None:
            return None
        facts = _identify(self._by_address.at(address, self._log))
        return None if facts is None else facts[0]

    def anchor_of(self, entry: Entry, /) -> object | None:
        """Return the anchor of an array that was unowned when it was born."""
        return _ANCHORS.get(id(entry()))

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the arrays born with numbers above `after`, up to `until`, that are alive."""
        if self._log is None:
            return None
        references, rows = self._log.recorded_memory(after, until)
        return LiveMemory(_NAME, references, rows, _identify, _is_alive)

    def part_of(self, cls: type, /) -> Part | None:
        """Return "tensor" for arrays."""
        return "tensor" if cls is ARRAY else None

    def memory_of(self, thing: Any, /) -> list[HeldMemory]:
        """Return the memory of an array."""
        return [] if thing.is_deleted() else [HeldMemory("", ("jax", id(thing)), thing.nbytes)]

    @recording
    def _record_unowned(self, array: Any) -> None:
        """Record an array that no scope owns."""
        nbytes: int = array.nbytes
        if nbytes:
            device = array.device if len(array.devices()) == 1 else min(array.devices(), key=lambda each: each.id)
            key = id(array)
            _ANCHORS[key] = anchor = _Anchor()
            anchor.array = ref(array, partial(_forget, key))
            self._log.record_memory(anchor, None, nbytes, _NAME, f"{device.platform}:{device.id}")


def _span_of(anchor: Any) -> tuple[int, int] | None:
    """Return where the memory of an array begins and ends; None if that is unknown."""
    array: Any = anchor.array() if type(anchor) is _Anchor else None
    if array is None or array.is_deleted() or not array.is_ready():
        return None
    try:
        start: int = array.unsafe_buffer_pointer()
    except (ValueError, RuntimeError):  # on several devices, or deleted meanwhile
        return None
    return start, start + array.nbytes


def _identify(anchor: Any) -> MemoryFacts | None:
    array: Any = anchor.array() if type(anchor) is _Anchor else None
    # None if the array is gone, or the anchor is another framework's.
    return None if type(array) is not ARRAY or array.is_deleted() else (("jax", id(array)), array.nbytes)


def _is_alive(reference: Callable[[], Any], _number: int) -> bool:
    anchor = reference()
    return anchor is not None and anchor.array() is not None
