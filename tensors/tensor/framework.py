"""NumPy arrays and `Tensor` as a framework: what a leak detector sees of them.

While a detector is open, the arena also serves contexts outside of scopes, and logs its blocks.
Blocks that are born there are unowned.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Container, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, final

import numpy as np

from ...scopes.context import innermost_scope
from ...scopes.framework import (
    FRAMEWORKS,
    Escape,
    Framework,
    HeldMemory,
    LifeRecording,
    LiveMemory,
    Part,
    register,
)
from ...scopes.identity import Entry
from ...scopes.scope import DisposeScope
from ..arena.extension import ARENA
from ..numpy.storage import BETWEEN_ARRAYS, Address, owner_of_another_kind, storage_of
from .tensor import TENSOR, array_of, exported_identities

__all__: list[str] = []

_NAME: Final = "numpy.ndarray"
"""The name of the kind of arrays in the log."""
_namespace: Final[Any] = vars(np.ndarray)
# These read the attributes of ndarray, even if a subclass overrides them.
_base: Final[Any] = _namespace["base"].__get__
_nbytes: Final[Any] = _namespace["nbytes"].__get__
_ARRAY: Final = np.ndarray


def _is_tensor(cls: type) -> bool:
    """Return whether a framework has tensors of a type."""
    return any(framework.part_of(cls) == "tensor" for framework in FRAMEWORKS.with_own("part_of"))


class _Local(threading.local):
    # The handler that served this thread's context before the detector was opened; None for the
    # arena.
    before: object = None


_local: Final = _Local()


@final
class NumpyFramework(Framework):
    """NumPy. It has no kinds: plain arrays have none, and `tensor` registers that of `Tensor`."""

    module = "numpy"

    def __init__(self) -> None:
        self._log: Any = None
        # The addresses of the recorded blocks, ascending; and the number of the last birth when the
        # list was made.
        self._starts: Sequence[int] = ()
        self._births = -1
        # Whether memory that another framework reports was ever found in a block.
        self._had_aliased = False

    def start_watching(self, log: Any, /) -> None:
        """Make the arena serve this context."""
        # The bytes of a view count with the block of its base.
        log.describe_kind(TENSOR, "Tensor", attrgetter("_array.nbytes"), None, "cpu:0", True)
        self._log = log
        ARENA.record_into(log.c_api)
        before = ARENA.swap_handler(None)
        if before is not None:
            _local.before = before

    def stop_watching(self) -> None:
        """Put back this context's handler, unless a scope is open: it does so when it is left."""
        ARENA.record_into(None)
        before, _local.before = _local.before, None
        if innermost_scope() is None:
            if before is None:
                ARENA.reset()
            else:
                ARENA.swap_handler(before)

    def record_lives(self, most_births: int, /) -> LifeRecording:
        """Record the blocks of the arena."""
        recording = ARENA.Pass(most_births=most_births)
        recording.begin(None)
        return recording  # type: ignore[no-any-return]  # ARENA is Any

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the blocks born with numbers above `after`, up to `until`, that are in use.

        Blocks that hold memory which another framework reports are left out.
        """
        log = self._log
        if log is None:
            return None
        addresses, rows = log.blocks(after, until)
        aliased = self._aliased(addresses)
        self._had_aliased = self._had_aliased or bool(aliased)
        for address in addresses if self._had_aliased else ():
            log.count_elsewhere(address, address in aliased)
        if aliased:
            kept = [place for place, address in enumerate(addresses) if address not in aliased]
            addresses, rows = [addresses[place] for place in kept], [rows[place] for place in kept]
        escape = partial(self._escape, exported_identities())
        return LiveMemory(_NAME, addresses, rows, None, log.is_in_use, escape)

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the address of the recorded block that an address lies in, or None."""
        if self._log is None:
            return None
        births, *_ = self._log.counts()
        if births != self._births:
            self._starts, self._births = array("Q", sorted(self._log.blocks(0, births)[0])), births
        return self._block_at(self._starts, address)

    def disposing(self, entry: Entry, owner: DisposeScope | None, /) -> None:
        """Tell the log that the block of an unowned Tensor escapes, if it stays in use.

        Not needed for a Tensor that a scope owns: the block escapes when the scope ends.
        """
        if owner is None and entry.kind is TENSOR:
            tensor = entry()
            block = None if tensor is None else ARENA.block(array_of(tensor))
            if block is not None:
                self._log.escape(block[0])

    def cached_nbytes(self) -> int:
        """Return the bytes that the arena has cached."""
        nbytes: int
        _, _, _, nbytes, *_ = ARENA.statistics()
        return nbytes

    def part_of(self, cls: type, /) -> Part | None:
        """Return "tensor" for arrays."""
        return "tensor" if issubclass(cls, np.ndarray) else None

    def references(self, thing: Any, /) -> list[tuple[str, object]]:
        """Return the base of an array, by way of what NumPy puts between the two."""
        base, step = _base(thing), ".base"
        while type(base) in BETWEEN_ARRAYS:
            base, step = base.base, f"{step}.base"
        return [] if base is None else [(step, base)]

    def memory_of(self, thing: Any, /) -> list[HeldMemory]:
        """Return the storage of an array."""
        identity: Hashable = storage_of(thing)[0]
        address = identity if type(identity) is Address else None
        if address is None and _base(thing) is not None:
            owner, begin = owner_of_another_kind(thing)
            address = begin if _is_tensor(type(owner)) else None
        known = None if address is None else FRAMEWORKS.identity_at(address, None)
        return [HeldMemory("", identity if known is None else known, _nbytes(thing))]

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the storage of a plain array without a base and without objects in it."""
        if type(tensor) is not _ARRAY or tensor.base is not None or tensor.dtype.hasobject:
            return None
        return storage_of(tensor)[0]

    def _aliased(self, addresses: list[int]) -> set[Hashable]:
        """Return those of the blocks that hold memory which other frameworks report."""
        others = FRAMEWORKS.with_own("borrowed_addresses") if addresses else ()
        pointers = sorted(pointer for framework in others for pointer in framework.borrowed_addresses())
        if not pointers:
            return set()
        starts = sorted(addresses)
        return {start for pointer in pointers if (start := self._block_at(starts, pointer)) is not None}

    def _block_at(self, starts: Sequence[int], address: int) -> int | None:
        """Return the block that an address lies in, given the addresses of blocks, ascending."""
        place = bisect_right(starts, address) - 1
        row = self._log.recall_block(starts[place]) if place >= 0 else None
        return starts[place] if row is not None and address < starts[place] + max(row.nbytes, 1) else None

    def _escape(self, exported: Container[Hashable], block: Any, _reference: Any) -> Escape | None:
        # A plain array may rightly outlive the Tensor that shares its block. With a disposed Tensor
        # only memory escapes that was exported from the Tensor.
        is_alias = block.identity in exported
        if ARENA.escaped(block.identity):
            return "disposed" if is_alias else "due"
        return "disposed" if is_alias and self._log.has_escaped(block.identity) else None


register(NumpyFramework())
