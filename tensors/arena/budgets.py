"""Bytes of other libraries' tensors, counted against the budgets of scopes.

The bytes of a tensor count from its birth until its memory goes. Only scopes with a budget pay for
it: `BUDGETS.scopes` is empty otherwise, and the paths of births ask nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from sys import _getframe
from typing import Any, Final, final
from weakref import ref

from ...scopes.base.sites import Mark, mark_of
from ...scopes.compiled import ScopeState
from .extension import ARENA

__all__ = [
    "BUDGETS",
    "Charge",
    "refused",
]

_TELLING: Final = 1024
"""A share of the budget as small as this is not worth the site of its birth."""


@final
class Charge(ref[Any]):
    """A weak reference to what lives as long as some memory, and the account that counts it."""

    __slots__ = ("_account", "key", "mark", "nbytes", "scope")
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    key: Hashable
    nbytes: int
    mark: Mark | None
    scope: ref[ScopeState] | None
    _account: Any

    def drop(self) -> None:
        """Stop counting these bytes. Idempotent."""
        account, self._account = self._account, None
        if account is not None:
            ARENA.discharge(account, self.nbytes)

    def move(self, target: ScopeState | None) -> bool:
        """Count these bytes for another scope, where their resource has moved."""
        self.drop()
        if target is not None:
            account = ARENA.charge(target, self.nbytes)
            if account is False:
                # The memory exists although no budget there has room for it: it is not counted, and
                # nobody is to be refused for it.
                ARENA.last_refusal()
            else:
                self._account = account
                self.scope = ref(target)
        return True


@final
class Budgets:
    """The budgets of open scopes, and what counts against them. The one instance is `BUDGETS`.

    Attributes
    ----------
    scopes : dict
        The open scopes that have a budget: frameworks put them there as they are entered.
    charges : dict
        What is counted, by the identity of the memory, which is good as long as the memory lives.
    """

    __slots__ = ("charges", "scopes")

    def __init__(self) -> None:
        self.scopes: dict[ScopeState, None] = {}
        self.charges: dict[Hashable, Charge] = {}

    def charge(self, scope: ScopeState, memory: object, key: Hashable, nbytes: int) -> bool:
        """Count memory that was born in a scope against the budgets around it.

        Parameters
        ----------
        scope : ScopeState
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
        if nbytes == 0 or key in self.charges:
            return True
        account = ARENA.charge(scope, nbytes)
        if account is None:
            return True
        if account is False:
            return False
        entry = Charge(memory, self._died)
        entry.key = key
        entry.nbytes = nbytes
        entry.scope = ref(scope)
        entry._account = account
        tightest = min((budgeted.budget or 0 for budgeted in list(self.scopes)), default=0)
        entry.mark = mark_of(_getframe(1)) if nbytes * _TELLING >= tightest else None
        self.charges[key] = entry
        return True

    def _died(self, entry: Charge) -> None:
        if self.charges.get(entry.key) is entry:
            del self.charges[entry.key]
        entry.drop()

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Count some memory no more, by its identities."""
        for key in keys:
            entry = self.charges.pop(key, None)
            if entry is not None:
                entry.drop()

    def charges_within(self, scope: ScopeState) -> Iterator[Charge]:
        """Return what is counted in a scope and in the scopes inside it."""
        for entry in list(self.charges.values()):
            node = None if entry.scope is None else entry.scope()
            while node is not None and node is not scope:
                node = node.outer
            if node is scope and entry._account is not None:
                yield entry


BUDGETS: Final = Budgets()


def refused(described: str, nbytes: int) -> MemoryError:
    """Return the error for memory that a budget refused; leaving the scope adds the figures."""
    return MemoryError(f"a budget refuses {nbytes} bytes for a {described}")
