"""The `Memory` of scopes, implemented with the compiled functions of the arena."""

from __future__ import annotations

import gc
import sys
from typing import Any, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.base.errors import EscapedError
from ...scopes.base.process import PATCHES, at_forks
from ...scopes.base.sites import site_of
from ...scopes.compiled import ScopeState
from ...scopes.context import HOOKS, ArenaUse, serve_plain_memory
from ...scopes.identity import owner_of_entry
from ..arena.budgets import BUDGETS, Charge
from ..arena.extension import ARENA
from ..numpy.storage import Address
from ..patches import GARBAGE_COLLECTIONS
from .tensor import Tensor, array_of, compact_copy, live_arrays

__all__: list[str] = []

_MOST_ROWS: Final = 5
"""So many lines of births are listed in a message."""


@final
class Service:
    """The service of plain memory: see `Memory`. Methods that are often called are compiled."""

    __slots__ = ("entered", "is_served", "left", "owner")

    entered: Any
    is_served: Any
    left: Any
    owner: Any

    def __init__(self) -> None:
        self.entered = ARENA.enter
        self.left = ARENA.leave
        self.owner = ARENA.owner
        self.is_served = ARENA.is_served

    def is_plain(self, thing: object) -> bool:
        """Return whether an object is an array, or the address of memory: see `Memory.is_plain`."""
        return issubclass(type(thing), (np.ndarray, Address))

    def move(self, thing: object, source: ScopeState | None, target: ScopeState | None) -> bool:
        """Change the owner of a block, or of a `Charge`: see `Memory.move`."""
        if type(thing) is Charge:
            return thing.move(target)
        # The block behind a Tensor stays if anything else refers to it: a plain array of its scope,
        # or another Tensor there.
        moved: bool
        if issubclass(type(thing), Tensor):
            # Without a local variable for the array, which would be another reference.
            moved = ARENA.move_unshared(array_of(cast("Tensor", thing)), source, target)
        else:
            moved = ARENA.move(thing, source, target)
        return moved

    def closed(self, scope: ScopeState) -> EscapedError | None:
        """Close its account: see `Memory.closed`."""
        if ARENA.live_nbytes(scope):
            # The block behind a live Tensor goes to the owner of the Tensor; it does not escape.
            for entry, array in live_arrays():
                if ARENA.owner(array) is scope:
                    ARENA.move(array, scope, owner_of_entry(entry))
        by_site = _sites_of(scope) if scope.strict else {}
        escaped = ARENA.close_account(scope, scope.outer, scope.escapes == "keep")
        if escaped is None or not escaped[0] or not scope.strict:
            return None
        count, nbytes = escaped
        called = "a strict scope" if scope.name is None else f"strict scope {scope.name!r}"
        return EscapedError(
            f"{count} array{'s' * (count != 1)} with {nbytes} bytes escaped from {called}: born in it, not moved out, "
            f"and still referenced; they stay valid and belong to the outer scope{_listed(by_site)}. "
            "What shall outlive its scope is moved out of it with scope.move_to_outer",
            count=count,
            nbytes=nbytes,
            sites=tuple(by_site),
        )

    def use(self, scope: ScopeState) -> ArenaUse:
        """Return the figures of its account: see `Memory.use`."""
        blocks, live, peak, hits, misses, escapes, escaped_nbytes, charged = ARENA.figures(scope)
        return ArenaUse(blocks, live, peak, hits, misses, escapes, escaped_nbytes, scope.budget, charged)

    def nbytes(self, scope: ScopeState) -> int:
        """Return the bytes of its account without blocks behind Tensors: see `Memory.nbytes`."""
        live: int = ARENA.live_nbytes(scope)
        if live:
            shown = dict(ARENA.block(array) for _, array in live_arrays() if ARENA.owner(array) is scope)
            live -= sum(max(nbytes, 1) for nbytes in shown.values())
        return live

    def compact_copy(self, thing: object) -> object:
        """Return a copy of an array that pins more than it uses: see `Memory.compact_copy`.

        Only NumPy's own types are copied; anything else is returned as it is.
        """
        # NumPy imports `numpy.ma` only when it is used.
        masked: Any = sys.modules.get("numpy.ma")
        if type(thing) is np.ndarray or (masked is not None and type(thing) is masked.MaskedArray):
            return compact_copy(cast("NDArray[Any]", thing))
        return thing

    def explain(self, error: MemoryError) -> None:
        """Add a note about the budget that refused the memory: see `Memory.explain`."""
        refusal = ARENA.last_refusal()
        if refusal is None:
            return
        scope, budget, live, requested = refusal
        total = getattr(error, "_total_size", requested)
        if max(total, 1) != requested:
            # The last refusal belongs to an earlier error, which was perhaps caught.
            return
        by_site = {} if scope is None else _sites_of(scope)
        called = "a scope" if scope is None or scope.name is None else f"scope {scope.name!r}"
        error.add_note(
            f"the budget of {called} refused it: budget {budget} bytes, live {live} bytes, requested {requested} bytes"
            + _listed(by_site)
        )


def _sites_of(scope: ScopeState) -> dict[str, tuple[int, int]]:
    """Return number and bytes of blocks and charges of a scope, by line of birth.

    The line with the most bytes comes first.
    """
    found: dict[str, tuple[int, int]] = {}
    charged = BUDGETS.charges_within(scope) if scope.budget is not None else ()
    for mark, nbytes in (*ARENA.sites(scope), *((entry.mark, entry.nbytes) for entry in charged)):
        site = str(site_of(mark) or "<unknown>")
        count, total = found.get(site, (0, 0))
        found[site] = count + 1, total + nbytes
    return dict(sorted(found.items(), key=lambda item: (-item[1][1], item[0])))


def _listed(by_site: dict[str, tuple[int, int]]) -> str:
    rows = [f"\n  {nbytes} bytes in {count} at {site}" for site, (count, nbytes) in list(by_site.items())[:_MOST_ROWS]]
    if len(by_site) > _MOST_ROWS:
        rows.append(f"\n  and {len(by_site) - _MOST_ROWS} more lines")
    return (":" if rows else "") + "".join(rows)


def _forget_inherited() -> None:
    """Put NumPy's own handler back in a forked child, unless a detector is open."""
    if not HOOKS.listeners:
        ARENA.reset()


serve_plain_memory(Service())


def _decay_at_collections() -> None:
    if ARENA.decay not in gc.callbacks:
        gc.callbacks.append(ARENA.decay)


PATCHES.change(GARBAGE_COLLECTIONS, _decay_at_collections, lambda: gc.callbacks.remove(ARENA.decay))
at_forks(in_child=_forget_inherited)
