"""The arena in the service of scopes: what `Memory` asks for, answered by the compiled part."""

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

_SHOWN: Final = 5


@final
class Service:
    """What scopes ask for plain memory. What is asked often is a function of the compiled part."""

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
        """Return whether an object is an array, or the address of one: see `Memory.is_plain`."""
        return issubclass(type(thing), (np.ndarray, Address))

    def move(self, thing: object, source: ScopeState | None, target: ScopeState | None) -> bool:
        """Change the owner of a block, or of what is counted against budgets: see `Memory.move`."""
        if type(thing) is Charge:
            return thing.move(target)
        # Keep a block that others refer to: it may be an array of its scope, or be shown by a
        # Tensor there.
        moved: bool
        if issubclass(type(thing), Tensor):
            # No name for the array here: it would be one reference more.
            moved = ARENA.move_unshared(array_of(cast("Tensor", thing)), source, target)
        else:
            moved = ARENA.move(thing, source, target)
        return moved

    def closed(self, scope: ScopeState) -> EscapedError | None:
        """Close its account: see `Memory.closed`."""
        if ARENA.live_nbytes(scope):
            # Memory that a live Tensor shows goes where the Tensor is; it does not escape.
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
        """Return the bytes of its account, less blocks that Tensors show: see `Memory.nbytes`.

        It does not matter who owns these Tensors.
        """
        live: int = ARENA.live_nbytes(scope)
        if live:
            shown = dict(ARENA.block(array) for _, array in live_arrays() if ARENA.owner(array) is scope)
            live -= sum(max(nbytes, 1) for nbytes in shown.values())
        return live

    def compact_copy(self, thing: object) -> object:
        """Return a copy of an array that pins more than it uses: see `Memory.compact_copy`.

        Only NumPy's own types are copied; anything else is returned as it is.
        """
        # `numpy.ma` is imported late, or never.
        masked: Any = sys.modules.get("numpy.ma")
        if type(thing) is np.ndarray or (masked is not None and type(thing) is masked.MaskedArray):
            return compact_copy(cast("NDArray[Any]", thing))
        return thing

    def explain(self, error: MemoryError) -> None:
        """Say which budget refused what: see `Memory.explain`."""
        refusal = ARENA.last_refusal()
        if refusal is None:
            return
        scope, budget, live, requested = refusal
        total = getattr(error, "_total_size", requested)
        if max(total, 1) != requested:
            # Another error than the one that was refused, and perhaps caught, before.
            return
        by_site = {} if scope is None else _sites_of(scope)
        called = "a scope" if scope is None or scope.name is None else f"scope {scope.name!r}"
        error.add_note(
            f"the budget of {called} refused it: budget {budget} bytes, live {live} bytes, requested {requested} bytes"
            + _listed(by_site)
        )


def _sites_of(scope: ScopeState) -> dict[str, tuple[int, int]]:
    """Return number and bytes of what a scope has in use, by line of birth, largest sum first."""
    found: dict[str, tuple[int, int]] = {}
    charged = BUDGETS.charges_within(scope) if scope.budget is not None else ()
    for mark, nbytes in (*ARENA.sites(scope), *((entry.mark, entry.nbytes) for entry in charged)):
        site = str(site_of(mark) or "<unknown>")
        count, total = found.get(site, (0, 0))
        found[site] = count + 1, total + nbytes
    return dict(sorted(found.items(), key=lambda item: (-item[1][1], item[0])))


def _listed(by_site: dict[str, tuple[int, int]]) -> str:
    rows = [f"\n  {nbytes} bytes in {count} at {site}" for site, (count, nbytes) in list(by_site.items())[:_SHOWN]]
    if len(by_site) > _SHOWN:
        rows.append(f"\n  and {len(by_site) - _SHOWN} more lines")
    return (":" if rows else "") + "".join(rows)


def _forget_inherited() -> None:
    """Leave the blocks of the parent in a forked child; a detector that is open watches on."""
    if not HOOKS.listeners:
        ARENA.reset()


serve_plain_memory(Service())


def _decay_at_collections() -> None:
    if ARENA.decay not in gc.callbacks:
        gc.callbacks.append(ARENA.decay)


PATCHES.change(GARBAGE_COLLECTIONS, _decay_at_collections, lambda: gc.callbacks.remove(ARENA.decay))
at_forks(in_child=_forget_inherited)
