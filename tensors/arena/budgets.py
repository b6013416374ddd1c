"""Bytes of other libraries' tensors, counted against the budgets of scopes from their birth until their memory goes.

Only scopes with a budget pay for it: `BUDGETED` is empty otherwise, and the paths of births ask
nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from sys import _getframe
from typing import Any, Final, final
from weakref import ref

from ...scopes.scope import DisposeScope
from ...scopes.sites import Mark, mark_of
from .extension import ARENA

__all__ = [
    "BUDGETED",
    "CHARGES",
    "Charge",
    "charge",
    "charges_within",
    "refused",
    "watch_budget",
    "watch_no_more",
]

BUDGETED: Final[dict[DisposeScope, None]] = {}
"""The open scopes that have a budget."""

CHARGES: Final[dict[Hashable, Charge]] = {}
"""What is counted, by the identity of the memory, which is good as long as the memory lives."""

_TELLING: Final = 1024
"""A share of the budget as small as this is not worth the site of its birth."""


@final
class Charge(ref[Any]):
    """A weak reference to what lives as long as some memory, and the accounts that count this memory's bytes."""

    __slots__ = ("_account", "key", "mark", "nbytes", "scope")
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    key: Hashable
    nbytes: int
    mark: Mark | None
    scope: ref[DisposeScope] | None
    _account: Any

    def drop(self) -> None:
        """Count it no more. Idempotent."""
        account, self._account = self._account, None
        if account is not None:
            ARENA.discharge(account, self.nbytes)

    def move(self, target: DisposeScope | None) -> bool:
        """Count it where its resource has gone."""
        self.drop()
        if target is not None:
            account = ARENA.charge(target, self.nbytes)
            if account is False:
                # It fits nowhere there, and is there all the same: it is not counted, and the
                # refusal is no news.
                ARENA.last_refusal()
            else:
                self._account = account
                self.scope = ref(target)
        return True


def _died(entry: Charge, charges: dict[Hashable, Charge] = CHARGES) -> None:
    if charges.get(entry.key) is entry:
        del charges[entry.key]
    entry.drop()


def charge(scope: DisposeScope, memory: object, key: Hashable, nbytes: int) -> bool:
    """Count memory that was born in a scope against the budgets around it.

    Parameters
    ----------
    scope : DisposeScope
        The owner.
    memory : object
        What lives as long as the memory.
    key : hashable
        The identity of the memory. What is counted already is not counted again.
    nbytes : int
        Its bytes.

    Returns
    -------
    bool
        False where a budget refuses; nothing is counted then.
    """
    if nbytes == 0 or key in CHARGES:
        return True
    account = ARENA.charge(scope, nbytes)
    if account is None:
        return True
    if account is False:
        return False
    entry = Charge(memory, _died)
    entry.key = key
    entry.nbytes = nbytes
    entry.scope = ref(scope)
    entry._account = account
    tightest = min((budgeted.budget or 0 for budgeted in list(BUDGETED)), default=0)
    entry.mark = mark_of(_getframe(1)) if nbytes * _TELLING >= tightest else None
    CHARGES[key] = entry
    return True


def refused(described: str, nbytes: int) -> MemoryError:
    """The error for memory that a budget refused; leaving the scope adds the figures."""
    return MemoryError(f"a budget refuses {nbytes} bytes for a {described}")


def charges_within(scope: DisposeScope) -> Iterator[Charge]:
    """What is counted in a scope and in the scopes inside it."""
    for entry in list(CHARGES.values()):
        node = None if entry.scope is None else entry.scope()
        while node is not None and node is not scope:
            node = node.outer
        if node is scope and entry._account is not None:
            yield entry


def watch_budget(scope: DisposeScope) -> None:
    """Take note that a scope was entered."""
    if scope.budget is not None:
        BUDGETED[scope] = None


def watch_no_more(scope: DisposeScope) -> None:
    """Take note that a scope is being left."""
    if scope.budget is not None:
        BUDGETED.pop(scope, None)
