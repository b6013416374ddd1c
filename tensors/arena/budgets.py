"""Bytes of other libraries' tensors, counted against the budgets of scopes.

The bytes of a tensor count from its birth until its memory is freed. Without scopes with a budget
this costs nothing: `BUDGETS.scopes` is empty then, and births only test that.
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

_SMALLEST_SHARE: Final = 1024
"""Memory of less than this fraction of the budget is counted without its birth site."""


@final
class Charge(ref[Any]):
    """The counted bytes of some memory: a weak reference to an object that lives as long.

    Attributes
    ----------
    key : hashable
        The identity of the memory.
    nbytes : int
        Its bytes.
    mark : Mark or None
        The place of its birth, if it is recorded.
    scope : ref of ScopeState or None
        The scope whose account counts it.
    """

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
        """Count the bytes for another scope, to which their resource has moved; return True."""
        self.drop()
        if target is not None:
            account = ARENA.charge(target, self.nbytes)
            if account is False:
                # A budget there has no room for the memory, which exists all the same. It is not
                # counted, and the refusal is forgotten.
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
        The open scopes that have a budget. Frameworks add them when they are entered.
    charges : dict
        The charges, by the identity of the memory, which is valid as long as the memory lives.
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
            An object that lives as long as the memory.
        key : hashable
            The identity of the memory, which is counted once.
        nbytes : int
            Its bytes.

        Returns
        -------
        bool
            False if a budget refuses; nothing is counted then.
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
        entry.mark = mark_of(_getframe(1)) if nbytes * _SMALLEST_SHARE >= tightest else None
        self.charges[key] = entry
        return True

    def _died(self, entry: Charge) -> None:
        if self.charges.get(entry.key) is entry:
            del self.charges[entry.key]
        entry.drop()

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Stop counting memory, given its identities."""
        for key in keys:
            entry = self.charges.pop(key, None)
            if entry is not None:
                entry.drop()

    def charges_within(self, scope: ScopeState) -> Iterator[Charge]:
        """Yield the charges of a scope and of the scopes inside it."""
        for entry in list(self.charges.values()):
            node = None if entry.scope is None else entry.scope()
            while node is not None and node is not scope:
                node = node.outer
            if node is scope and entry._account is not None:
                yield entry


BUDGETS: Final = Budgets()


def refused(described: str, nbytes: int) -> MemoryError:
    """Return the error for memory that a budget refused. It gets notes when it leaves the scope."""
    return MemoryError(f"a budget refuses {nbytes} bytes for a {described}")
