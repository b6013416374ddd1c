"""What is held when a block ends: the option ``escapes``, and what models and other keepers hold.

A scope releases what it owns, whatever refers to it. Two kinds of resources are excepted:

* what a keeper holds, an object such as a model, a metric or a scheduler: in every scope it is left
  to the keeper;
* what is held, referenced by more than the block's own variables: in scopes with
  ``escapes="keep"`` it is handed to the outer scope, and with ``"raise"`` an error lists it.

Compiled code finds both: see `src/held/holding.h`.
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
    """Declare classes whose objects keep tensors on purpose: scopes leave them what they hold.

    This is for objects that are given tensors, or make them, in one step and need them in a later
    step: the counts of a metric, a cache, the last outputs of a scheduler. What such an object
    holds when a block ends, directly or inside containers and other objects, becomes unowned, and
    lives by reference count. ``torch.nn.Module``, ``torch.optim.Optimizer`` and classes of common
    libraries are declared already.

    Parameters
    ----------
    *names : str or type
        A class; or the full name of a class, module or package, such as ``"project.metrics"``,
        which stands for all classes defined there and classes derived from them. For a module its
        variables are kept, too. Nothing is imported.

    Raises
    ------
    TypeError
        A name is neither a str nor a class.
    ValueError
        A name is no dotted name.

    Notes
    -----
    A scope looks for such objects only if resources survive its block because something other than
    the variables of the block refers to them. The search begins at the variables of the running
    code and goes through containers, objects, and the modules and classes whose code they can call,
    except installed libraries. An object that is more than some 2,000 objects away is not found.

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
"""The witnesses of open scopes, by ``id`` of the scope."""

_MOST_ROWS: Final = 10
"""So many resources are listed in an `EscapedError`."""
_MODULES_THAT_ENTER: Final = (
    "contextlib",
    "disposescope.sequences.batches",
    "disposescope.sequences.collate",
    __package__,
)


def note_block(scope: ScopeState, frame: FrameType | None) -> None:
    """Note which variables of a block are bound before it begins.

    `frame` calls ``__enter__``. The block is that of the innermost frame outside of modules that
    enter a scope for another frame.
    """
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_MODULES_THAT_ENTER):
        frame = frame.f_back
    if frame is not None:
        scope._variables = note_variables(frame)
    if scope.escapes == "raise" and HOOKS.open_witness is not None:
        _witnesses[id(scope)] = HOOKS.open_witness()


def forget_block(scope: ScopeState) -> None:
    """Undo `note_block`, when the scope is closed."""
    scope._variables = None
    witness = _witnesses.pop(id(scope), None)
    if witness is not None:
        witness.close()


def settle_survivors(scope: ScopeState, in_flight: BaseException | None) -> EscapedError | None:
    """Leave resources of a scope to keepers, and apply its option `escapes` to what else is held.

    Can be called again after an interrupt.

    Parameters
    ----------
    scope : ScopeState
        The scope that is left.
    in_flight : BaseException or None
        The exception that passes through the block; None for the exception that is being handled,
        as when a handler closes the scope. The frames that it has ended hold nothing.

    Returns
    -------
    EscapedError or None
        The error that a scope with ``escapes="raise"`` raises.
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
        # An exception raised here goes into their contexts, and its traceback refers to this frame:
        # the references would make a cycle.
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
    """Return the entries whose resources are alive, with the resources, which keeps them alive.

    Other threads may drop some.
    """
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
    """Return the live resources that a scope gave to the outer scope because they were held."""
    resources = (entry() for entry in scope._escaped if LIVE.get(entry.key) is entry)
    return EscapedResources(resource for resource in resources if resource is not None)


def keep_all(scope: ScopeState) -> None:
    """Hand all that a scope owns to the outer scope, after `settle_survivors` failed.

    In doubt a resource counts as held.
    """
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
            # Another thread or the garbage collector has dropped it since.
            continue
        storages_of(entry, nbytes)
        born = f", born at {line}" if line else ""
        rows.append(f"\n  {entry.kind.describe(resource)}{born}{f', held by {holder}' if holder else ''}")
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:] = [f"\n  and {len(rows) - _MOST_ROWS} more"]
    return EscapedError(
        f"{len(held)} of the resources of {scope._called()} {'is' if len(held) == 1 else 'are'} held by more than the "
        f"variables of its block; all of them were disposed. Move out what is meant to live with move_to_outer():"
        f"{''.join(rows)}",
        count=len(held),
        nbytes=sum(nbytes.values()),
        sites=tuple([line for line in lines if line]),
    )
