"""Giving small views memory of their own, so that the big one behind them can go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ._entry import Entry
from ._memory import MEMORY
from ._parts import arrays_of, parts_of

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["COPIERS", "made_compact"]

COPIERS: Final[dict[type, Callable[[object], object]]] = {}
"""For a type of plain memory, what gives a copy of an instance that pins more than it uses, and any other as it is."""


def made_compact(scope: DisposeScope, tree: object, entries: list[Entry], plain: list[object]) -> object:
    """Give what a scope owns in a tree memory of its own, where it pins more than it uses.

    Returns
    -------
    object
        The tree; where it is a plain array itself, its copy, which stands in `plain` then.

    Raises
    ------
    TypeError
        A plain array to be copied is inside of a container, where its copy could not take its place. Nothing has
        been copied.
    """
    copies: list[tuple[int, object]] = []
    for index, array in enumerate(plain):
        copier = COPIERS.get(type(array))
        if copier is None or not MEMORY or MEMORY[0].owner(array) is not scope:
            continue
        copy = copier(array)
        if copy is array:
            continue
        if array is not tree:
            raise TypeError(
                f"compact=True copies the {type(array).__qualname__} that it is given, and cannot put the copy into "
                f"the {type(tree).__qualname__} around it: move the array out by itself, or keep a Tensor"
            )
        copies.append((index, copy))
    for entry in entries:
        for part, resource in parts_of(entry):
            if part.kind.compact is not None:
                part.kind.compact(resource)
        if scope._account is not None:
            for array in arrays_of(entry):
                _take_in(scope, array)
    for index, copy in copies:
        plain[index] = tree = copy
        _take_in(scope, copy)
    return tree


def _take_in(scope: DisposeScope, array: object) -> None:
    """Let the scope own memory that was made in whatever scope is current."""
    memory = MEMORY[0]
    owner = memory.owner(array)
    if owner is not None and owner is not scope:
        memory.move(array, owner, scope)
