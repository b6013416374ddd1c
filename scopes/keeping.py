"""What is held when a block ends: the option ``escapes``, and what models and other keepers have.

A scope releases what it owns, whoever refers to it. Two questions come first. What of it does an
object hold that keeps what it is given, such as a model, a metric or a scheduler? That is the
object's, in every scope. And, in scopes with ``escapes="keep"`` or ``"raise"``: what of it does
anything but the block's own variables refer to? Compiled code answers both; see
`src/held/holding.h`.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, final

from .base.errors import EscapedError
from .compiled import (
    Entry,
    ScopeState,
    held_entries,
    note_variables,
    thread_ledger,
)
from .context import HOOKS, Witness
from .identity import LIVE, entry_of, storages_of, story_of
from .kinds import KINDS, kind_of
from .ownership import hand_over, leave_to_keepers
from .tree_walk import CLASSES, add_keepers

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = [
    "EscapedResources",
    "escaped_of",
    "forget_block",
    "keep_all",
    "keeps",
    "note_block",
    "settle_survivors",
]


def keeps(*names: str | type) -> None:
    """Say what keeps tensors on purpose: scopes leave it what it holds when a block ends.

    For objects that are given tensors, or make them, in one step and need them in a later one: a
    metric's counts, a cache, a scheduler's last outputs. What such an object holds when a block
    ends, directly or inside containers and other objects, is no scope's from then on, and lives by
    reference count. ``torch.nn.Module`` and ``torch.optim.Optimizer`` are known, and classes of
    common libraries.

    Parameters
    ----------
    *names : str or type
        A class; or its full name, or that of a module or package, such as ``"project.metrics"``:
        all classes that are defined there, and classes derived from them. Of a module that is named
        itself the variables are meant too. Nothing is imported.

    Raises
    ------
    TypeError
        A name is neither a str nor a class.
    ValueError
        A name is no dotted name.

    Notes
    -----
    Such an object is looked for where a block leaves something behind that its variables do not
    account for: from the variables of the code that runs, through containers, objects, and the
    modules and classes whose code they can call, those of installed libraries left out. One that is
    more than some 2,000 objects away is not found.

    Examples
    --------
    >>> import disposescope as ds
    >>> class Average:
    ...     total = 0.0
    ...
    ...     def update(self, value):
    ...         self.total = self.total + value
    >>> ds.keeps(Average)
    >>> average = Average()
    >>> for step in range(3):
    ...     with ds.dispose_scope():
    ...         average.update(ds.ones(2))
    >>> average.total.tolist()
    [3.0, 3.0]
    """
    for name in names:
        if isinstance(name, type):
            continue
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise TypeError(f"keeps: expected classes and names of classes, modules or packages, not {name!r}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"keeps: {name!r} is no dotted name, such as 'package.module.Class'")
    add_keepers(*names)


# The end of a block.


_witnesses: Final[dict[int, Witness]] = {}
"""Of the open scopes that have one, by ``id``."""

_SHOWN: Final = 10
_NOT_OF_THE_BLOCK: Final = (
    "contextlib",
    "disposescope.sequences.batches",
    "disposescope.sequences.collate",
    __package__,
)


def note_block(scope: ScopeState, frame: FrameType | None) -> None:
    """Note which variables of a block were bound before it begins; `frame` enters its scope."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_NOT_OF_THE_BLOCK):
        frame = frame.f_back
    if frame is not None:
        scope._variables = note_variables(frame)
    if scope.escapes == "raise" and HOOKS.open_witness is not None:
        _witnesses[id(scope)] = HOOKS.open_witness()


def forget_block(scope: ScopeState) -> None:
    """Undo `note_block`: the scope is closed."""
    scope._variables = None
    witness = _witnesses.pop(id(scope), None)
    if witness is not None:
        witness.close()


def settle_survivors(scope: ScopeState, in_flight: BaseException | None) -> EscapedError | None:
    """Give keepers what they hold of what a scope owns, and treat what else is held.

    The option of the scope says how. Can be called again after an interrupt.

    Parameters
    ----------
    scope : ScopeState
        The scope that is left.
    in_flight : BaseException or None
        What leaves its block. The frames that it has left hold nothing. Without one, that goes for
        the exception that is being handled, as where a handler closes the scope.

    Returns
    -------
    EscapedError or None
        What a scope with ``escapes="raise"`` raises.
    """
    option = scope.escapes
    try:
        if CLASSES.any_keeps:
            kept = _alive(CLASSES.kept(list(scope._entries)))
            if kept:
                leave_to_keepers(scope, list(kept))
        if option == "dispose" or not scope._entries:
            return None
        passing = sys.exception() if in_flight is None else in_flight
        held = held_entries(list(scope._entries), KINDS.anchored, scope._variables, passing)
    finally:
        # What is raised here is hung onto it, and has this frame in its traceback.
        passing = in_flight = None
    if not held:
        return None
    if option == "raise":
        return _refusal(scope, held)
    alive = _alive(held)
    scope._escaped = (*scope._escaped, *alive)
    thread_ledger().escaped += len(alive)
    hand_over(scope, list(alive), scope.outer, [])
    return None


def _alive(entries: list[Entry]) -> dict[Entry, object]:
    """Return the entries that are alive, with their resources: other threads may drop some."""
    return {entry: resource for entry in entries if (resource := entry()) is not None}


@final
class EscapedResources(tuple[Any, ...]):
    """The resources held when a block with ``escapes="keep"`` ended: see `DisposeScope.escaped`.

    Its ``repr`` describes each of them, with the line where it was born while a leak detector is
    open.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        rows: list[str] = []
        for resource in self:
            entry, kind = entry_of(resource), kind_of(resource)
            described = type(resource).__qualname__ if kind is None else kind.describe(resource)
            rows.append(f"\n  {described}{story_of(entry)}")
        return f"<{len(self)} escaped{':' if rows else ''}{''.join(rows)}>"


def escaped_of(scope: ScopeState) -> EscapedResources:
    """Return what a scope gave to the outer scope because it was held, as far as it is alive."""
    resources = (entry() for entry in scope._escaped if LIVE.get(entry.key) is entry)
    return EscapedResources(resource for resource in resources if resource is not None)


def keep_all(scope: ScopeState) -> None:
    """Hand what is left to the outer scope where `settle_survivors` failed: in doubt it is held."""
    hand_over(scope, list(scope._entries), scope.outer, [])


def _refusal(scope: ScopeState, held: list[Entry]) -> EscapedError:
    witness = _witnesses.get(id(scope))
    lines = [""] * len(held) if witness is None else witness.lines_of(held)
    holders = [""] * len(held) if witness is None else witness.holders_of(held)
    nbytes: dict[Hashable, int] = {}
    rows: list[str] = []
    for entry, line, holder in zip(held, lines, holders, strict=True):
        resource = entry()
        if resource is None:
            # Dropped since: by another thread, or by the collector of cycles.
            continue
        storages_of(entry, nbytes)
        born = f", born at {line}" if line else ""
        rows.append(f"\n  {entry.kind.describe(resource)}{born}{f', held by {holder}' if holder else ''}")
    if len(rows) > _SHOWN:
        rows[_SHOWN:] = [f"\n  and {len(rows) - _SHOWN} more"]
    return EscapedError(
        f"{len(held)} of the resources of {scope._called()} {'is' if len(held) == 1 else 'are'} held by more than the "
        f"variables of its block; all of them were disposed. Move out what is meant to live with move_to_outer():"
        f"{''.join(rows)}",
        count=len(held),
        nbytes=sum(nbytes.values()),
        sites=tuple([line for line in lines if line]),
    )
