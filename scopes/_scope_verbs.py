"""The verbs of a scope: moving, attaching and disposing what it owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from ._closing import release_all_but
from ._compacting import made_compact
from ._entry import is_tracked
from ._estates import ESTATES, UNSEEN, catch_up
from ._failures import raise_failures
from ._memory import MEMORY
from ._ownership import hand_over, owned_in, take_over
from ._scope_view import ScopeView
from ._trees import resources_in

if TYPE_CHECKING:
    from ._scope import DisposeScope

T = TypeVar("T")

__all__ = ["ScopeVerbs"]


class ScopeVerbs(ScopeView):
    """What can be done to what a scope owns."""

    __slots__ = ()

    def move_to_outer(self, tree: T, *, compact: bool = False) -> T:
        """Give what this scope owns in a tree to the outer scope; with no outer scope it becomes unowned.

        Parameters
        ----------
        tree : T
            A resource, or any nesting of containers: list, tuple, namedtuple, dict and other mappings, set,
            frozenset, deque, dataclass, attrs class, array of objects. What this scope does not own is left as it is
            (in a strict scope:
            `NotOwnedError`); a member stands for its composite.
        compact : bool, default False
            Give views memory of their own, so that the big storage behind a small view can go with this scope: the
            same tensors, with the same values, and a copy behind them. A plain array is given as it is, outside of any
            container, and a copy of it is returned.

        Returns
        -------
        T
            `tree` itself; for a plain array that was to be made compact, its copy.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        UnknownKindError
            An object of unknown type in the tree hides a resource that this scope owns. Nothing has moved.
        TypeError
            A plain array to be made compact is inside of a container. Nothing has moved.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.dispose_scope("read") as scope:
        ...     content = ds.zeros(1_000_000)
        ...     header = scope.move_to_outer(content[:10], compact=True)
        >>> [record.nbytes for record in ds.live_tensors() if record.shape == (10,)]
        [80]
        """
        self._check_open("move_to_outer")
        plain: list[object] = []
        entries = owned_in(_itself(self), tree, "move_to_outer", plain)
        if compact:
            tree = cast("T", made_compact(_itself(self), tree, entries, plain))
        hand_over(_itself(self), entries, self.outer, plain)
        return tree

    def move_to(self, other: DisposeScope, tree: T) -> T:
        """Give what this scope owns in a tree to another open scope; otherwise as `move_to_outer`.

        Raises
        ------
        ScopeClosedError
            `other` or this scope is closed. Nothing has moved.
        TypeError
            `other` is no scope.
        """
        self._check_open("move_to")
        if not isinstance(other, ScopeVerbs):  # pyright: ignore[reportUnnecessaryIsInstance] (as above)
            raise TypeError(f"move_to: the first argument must be a DisposeScope, not a {type(other).__qualname__}")
        other._check_open("move_to")
        plain: list[object] = []
        entries = owned_in(_itself(self), tree, "move_to", plain)
        if other is not self:
            hand_over(_itself(self), entries, other, plain)
        return tree

    def detach(self, tree: T) -> T:
        """Give up what this scope owns in a tree: it becomes unowned and lives by reference count. Returns `tree`.

        Otherwise as `move_to_outer`.
        """
        self._check_open("detach")
        plain: list[object] = []
        hand_over(_itself(self), owned_in(_itself(self), tree, "detach", plain), None, plain)
        return tree

    def attach(self, tree: T) -> T:
        """Take over the resources in a tree, whoever owned them before; this scope will dispose them. Returns `tree`.

        Objects of the user's own with a method ``dispose()`` get known to the library here. One that cannot be weakly
        referenced is held until it is disposed or detached.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        DisposedError
            A resource in the tree has been disposed.
        DeviceMismatchError
            The members of a composite live on different devices.
        UnknownKindError
            An object of unknown type hides a resource. Nothing has been attached, in this case as in the others.
        """
        self._check_open("attach")
        plain: list[object] = []
        take_over(_itself(self), resources_in(tree, is_tracked, "the tree given to attach()", plain))
        for array in plain:
            MEMORY[0].move(array, MEMORY[0].owner(array), _itself(self))
        return tree

    def dispose_everything(self) -> None:
        """Release all that this scope owns now; the scope stays open.

        Raises
        ------
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything")
        if ESTATES or UNSEEN:
            catch_up()
        failures = release_all_but(_itself(self), set())
        if failures:
            raise_failures(failures, f"dispose_everything() of {self._called()}", None)

    def dispose_everything_but(self, tree: T) -> T:
        """Release all that this scope owns, except what is in the tree. Returns `tree`.

        What is in the tree and not owned by this scope is left as it is, and so is ``None``.

        Raises
        ------
        UnknownKindError
            An object of unknown type in the tree hides a resource of this scope. Nothing has been released.
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything_but")
        kept = set(owned_in(_itself(self), tree, "dispose_everything_but", [], check_strict=False))
        failures = release_all_but(_itself(self), kept)
        if failures:
            raise_failures(failures, f"dispose_everything_but() of {self._called()}", None)
        return tree


def _itself(scope: ScopeVerbs) -> DisposeScope:
    """The scope as what it is: there is no other class on this floor."""
    return cast("DisposeScope", scope)
