"""The arena in the service of scopes: what `Memory` asks for, answered by the compiled part where it is available."""

from __future__ import annotations

import gc
import sys
from typing import Any, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.context import CURRENT, resolve
from ...scopes.errors import EscapedError
from ...scopes.extension import COMPILED
from ...scopes.forks import at_forks
from ...scopes.identity import owner_of_entry
from ...scopes.kinds import when_watched
from ...scopes.listeners import LISTENERS
from ...scopes.plain_memory import ArenaUse, serve_plain_memory
from ...scopes.scope import DisposeScope
from ...scopes.sites import mark_of, site_of
from ..arena.budgets import CHARGES, Charge, charges_within
from ..arena.extension import ARENA
from ..numpy.storage import TIES
from .tensor import Tensor, compact_copy, live_arrays, move_alone

__all__ = [
    "Service",
]

_SHOWN: Final = 5


@final
class Service:
    """What scopes ask for plain memory; what is asked often is a function of the compiled part itself."""

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
        """Whether it is an array: see `Memory.is_plain`."""
        return issubclass(type(thing), np.ndarray)

    def move(self, thing: object, source: DisposeScope | None, target: DisposeScope | None) -> bool:
        """Change the owner of a block, or of what is counted against budgets: see `Memory.move`."""
        if type(thing) is Charge:
            return thing.move(target)
        # What others refer to as well stays: it may be an array of the scope it is in, or be shown
        # by a Tensor there.
        moved: bool = (move_alone if issubclass(type(thing), Tensor) else ARENA.move)(thing, source, target)
        return moved

    def closed(self, scope: DisposeScope) -> EscapedError | None:
        """Close its account: see `Memory.closed`."""
        if ARENA.live_nbytes(scope):
            # Memory that a live Tensor shows goes where the Tensor is; it does not escape.
            for entry, array in live_arrays():
                if ARENA.owner(array) is scope:
                    ARENA.move(array, scope, owner_of_entry(entry))
        told = _sites_of(scope) if scope.strict else {}
        escaped = ARENA.close_account(scope, scope.outer)
        if escaped is None or not escaped[0] or not scope.strict:
            return None
        count, nbytes = escaped
        called = "a strict scope" if scope.name is None else f"strict scope {scope.name!r}"
        return EscapedError(
            f"{count} array{'s' * (count != 1)} with {nbytes} bytes escaped from {called}: born in it, not moved out, "
            f"and still referenced; they stay valid and belong to the outer scope{_listed(told)}. "
            "What shall outlive its scope is moved out of it with scope.move_to_outer",
            count=count,
            nbytes=nbytes,
            sites=tuple(told),
        )

    def use(self, scope: DisposeScope) -> ArenaUse:
        """The figures of its account: see `Memory.use`."""
        blocks, live, peak, hits, misses, escapes, escaped_nbytes, charged = ARENA.figures(scope)
        return ArenaUse(blocks, live, peak, hits, misses, escapes, escaped_nbytes, scope.budget, charged)

    def nbytes(self, scope: DisposeScope) -> int:
        """What its account has live, less the blocks that Tensors show, whoever owns these: see `Memory.nbytes`."""
        live: int = ARENA.live_nbytes(scope)
        if live:
            shown = dict(ARENA.block(array) for _, array in live_arrays() if ARENA.owner(array) is scope)
            live -= sum(max(nbytes, 1) for nbytes in shown.values())
        return live

    def compact_copy(self, thing: object) -> object:
        """Return a copy of an array of NumPy's own that pins more than it uses: see `Memory.compact_copy`."""
        # Masked arrays are imported late, or never.
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
        told = {} if scope is None else _sites_of(scope)
        called = "a scope" if scope is None or scope.name is None else f"scope {scope.name!r}"
        error.add_note(
            f"the budget of {called} refused it: budget {budget} bytes, live {live} bytes, requested {requested} bytes"
            + _listed(told)
        )


def _sites_of(scope: DisposeScope) -> dict[str, tuple[int, int]]:
    """Number and bytes of the live arrays of a scope by the line where they were born, the largest sum first."""
    found: dict[str, tuple[int, int]] = {}
    charged = charges_within(scope) if CHARGES and scope.budget is not None else ()
    for mark, nbytes in (*ARENA.sites(scope), *((entry.mark, entry.nbytes) for entry in charged)):
        site = str(site_of(mark) or "<unknown>")
        count, total = found.get(site, (0, 0))
        found[site] = count + 1, total + nbytes
    return dict(sorted(found.items(), key=lambda item: (-item[1][1], item[0])))


def _listed(told: dict[str, tuple[int, int]]) -> str:
    rows = [f"\n  {nbytes} bytes in {count} at {site}" for site, (count, nbytes) in list(told.items())[:_SHOWN]]
    if len(told) > _SHOWN:
        rows.append(f"\n  and {len(told) - _SHOWN} more lines")
    return (":" if rows else "") + "".join(rows)


def _watch_arrays() -> None:
    from .watching import watch_arrays

    watch_arrays()


def _forget_inherited() -> None:
    """A forked child is outside of the blocks of its parent; a detector that is open watches on."""
    if not LISTENERS:
        ARENA.reset()


when_watched(_watch_arrays)
ARENA.bind(CURRENT, DisposeScope, resolve, mark_of, LISTENERS, TIES, COMPILED.changes)
serve_plain_memory(Service())
# An event now and then, in programs that use no scope any more: what is cached is not kept for
# ever.
gc.callbacks.append(ARENA.decay)
at_forks(in_child=_forget_inherited)
