"""JAX as a framework of scopes and of leak detectors. Imports JAX: `install` has it loaded.

A detector sees arrays outside of scopes too, owned by nobody, where scopes see births: by
JAX's hook, at first calls and at ``device_put``. What comes into being in other ways (the copy of
an array to another device) is recorded only where a scope owns it.
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


@final
class _Anchor:
    """Stands in the log for an array, and goes when that goes."""

    __slots__ = ("__weakref__", "array")

    array: ref[Any]


_ANCHORS: Final[dict[int, _Anchor]] = {}
"""By ``id`` of an array that is there."""


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
        """See births from now on."""
        install()

    def scope_entered(self, scope: DisposeScope, /) -> None:
        """Find what came into being before."""
        entered(scope)

    def scope_left(self, scope: DisposeScope, /) -> None:
        """Find what came into being inside."""
        left(scope)

    def find_births(self, scope: DisposeScope | None, /) -> None:
        """Find what came into being, or was deleted, unseen on this thread."""
        look(scope)

    def children(self, node: Any, /) -> Iterator[tuple[str, object]] | None:
        """Return the array inside an array of random number keys."""
        return array_in_key(node)

    def start_watching(self, log: Any, /) -> None:
        """See births on this thread from now on."""
        self._log = log
        uncover()
        BIRTHS.record = self._see

    def stop_watching(self) -> None:
        """See none any more."""
        BIRTHS.record = None

    def record_pending(self) -> None:
        """Have JAX let go of NumPy arrays that it has copied.

        It keeps them until it is called again.
        """
        collect = getattr(sys.modules.get("jax._src.lib"), "_xla_gc_callback", None)
        if collect is not None and BIRTHS.record is not None:
            collect()

    def borrowed_addresses(self) -> Iterator[int]:
        """Yield the addresses of NumPy's blocks that are the whole memory of an array.

        ``device_put`` makes such arrays.
        """
        if self._log is None:
            return
        for anchor in list(_ANCHORS.values()):
            span = None if self._log.recall_memory(anchor) is None else _span_of(anchor)
            row = None if span is None else self._log.recall_block(span[0])
            if span is not None and row is not None and row.nbytes <= span[1] - span[0]:
                yield span[0]

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the array of one device in which an address lies."""
        if self._log is None:
            return None
        facts = _identify(self._by_address.at(address, self._log))
        return None if facts is None else facts[0]

    def anchor_of(self, entry: Entry, /) -> object | None:
        """Return what stands for an array that was nobody's when it was born."""
        return _ANCHORS.get(id(entry()))

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the arrays of a window that are there now."""
        if self._log is None:
            return None
        references, rows = self._log.recorded_memory(after, until)
        return LiveMemory(_NAME, references, rows, _identify, _is_there)

    def part_of(self, cls: type, /) -> Part | None:
        """Return that arrays are tensors."""
        return "tensor" if cls is ARRAY else None

    def memory_of(self, thing: Any, /) -> list[HeldMemory]:
        """Return the memory of an array."""
        return [] if thing.is_deleted() else [HeldMemory("", ("jax", id(thing)), thing.nbytes)]

    @recording
    def _see(self, array: Any) -> None:
        """Record an array that no scope owns."""
        nbytes: int = array.nbytes
        if nbytes:
            platform = array.device if len(array.devices()) == 1 else min(array.devices(), key=lambda one: one.id)
            key = id(array)
            _ANCHORS[key] = anchor = _Anchor()
            anchor.array = ref(array, partial(_forget, key))
            self._log.record_memory(anchor, None, nbytes, _NAME, f"{platform.platform}:{platform.id}")


def _span_of(anchor: Any) -> tuple[int, int] | None:
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
    # Gone, or memory of another framework.
    return None if type(array) is not ARRAY or array.is_deleted() else (("jax", id(array)), array.nbytes)


def _is_there(reference: Callable[[], Any], _number: int) -> bool:
    anchor = reference()
    return anchor is not None and anchor.array() is not None
