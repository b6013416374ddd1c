"""The hook that JAX calls after each call of compiled code from its cache, in the context of the caller."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, final

from ..scopes._births import born
from ..scopes._current import CURRENT, current_scope
from ..scopes._entries import LIVE
from ..scopes._kinds import Kind
from ._charges import BUDGETED, CHARGES, charge, refused
from ._jax_live import ARRAY, SEEN

__all__ = ["SIGHTINGS", "hang_in", "tell", "uncover"]

_api: Final[Any] = import_module("jax._src.api")
_config: Final[Any] = import_module("jax._src.config")
# On while a function is being traced and something is computed at once, by request: that is a constant of it.
_folding: Final[Any] = _config.eager_constant_folding
_tree_leaves: Final[Callable[[object], list[Any]]] = import_module("jax").tree_util.tree_leaves

_KIND: Final[list[Kind]] = []

SIGHTINGS: Final[list[Callable[[Any], None]]] = []
"""Who is told, while a leak detector is open, of the arrays that are born outside of all scopes."""


class _Hook:
    """What JAX calls after each call of compiled code from its cache; calls what was there before."""

    __slots__ = ("before",)

    def __init__(self) -> None:
        self.before: Callable[..., object] | None = None

    def __call__(self, function: object, args: object, kwargs: object, result: Any) -> None:
        if self.before is not None:
            self.before(function, args, kwargs, result)
        scope = CURRENT.get()
        if scope is None and not SIGHTINGS:
            return
        if type(result) is ARRAY and scope is not None and scope._direct and not BUDGETED:
            # The hot path.
            if id(result) not in LIVE and not _folding.value:
                if SEEN:
                    SEEN.pop(id(result), None)
                born(result, _KIND[0])
            return
        arrays = [result] if type(result) is ARRAY else _arrays_in(result)
        arrays = [array for array in arrays if id(array) not in LIVE]
        if arrays and not _folding.value:
            # Its frame is in the traceback of a refusal, and the caller drops what was refused.
            del result
            tell(arrays)


def tell(arrays: list[Any]) -> None:
    """Have arrays that have just come into being born in the current scope, or seen outside of all.

    Parameters
    ----------
    arrays : list of jax.Array
        Each once, and none that is known. Emptied where they are refused.

    Raises
    ------
    MemoryError
        A budget refuses them. None of them is born then.
    """
    if current_scope() is None:
        for array in arrays:
            for see in SIGHTINGS:
                see(array)
        return
    refusal = _refusal_of(arrays) if BUDGETED else None
    if refusal is not None:
        arrays.clear()
        try:
            raise refusal
        finally:
            del refusal
    for array in arrays:
        SEEN.pop(id(array), None)
        born(array, _KIND[0])


_HOOK: Final = _Hook()


def _arrays_in(result: object) -> list[Any]:
    found: list[Any] = [leaf for leaf in _tree_leaves(result) if type(leaf) is ARRAY]
    return list({id(array): array for array in found}.values())


@final
class _HookState:
    """Stands in JAX for the place of its hook, which its checks for NaNs use too, and forget whom they push out."""

    __slots__ = ("_place", "_unset")

    def __init__(self, place: Any) -> None:
        self._place = place
        self._unset = _config.config_ext.unset
        self.set_global(place.get_global())

    def set_global(self, hook: Callable[..., object] | None) -> None:
        """What is called on all threads, besides ours."""
        _HOOK.before = hook
        self._place.set_global(_HOOK)

    def set_local(self, hook: Callable[..., object] | None) -> None:
        """What is called on this thread, besides ours; None is what is called on all threads."""
        if hook is None:
            self._place.set_local(self._unset)
            return
        ours = _Hook()
        ours.before = hook
        self._place.set_local(ours)

    def uncover(self) -> None:
        """Take away what a check, switched off on this thread before we came, has left there."""
        if self._place.get_local() is None:
            self._place.set_local(self._unset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)


_PLACES: Final[list[_HookState]] = []


def hang_in(kind: Kind) -> None:
    """Hang the hook in, where this version of JAX has a place for it."""
    _KIND.append(kind)
    place = getattr(_api, "_post_hook_state", None)
    if place is not None:
        _PLACES.append(_HookState(place))
        _api._post_hook_state = _PLACES[0]


def _refusal_of(arrays: list[Any]) -> MemoryError | None:
    scope = current_scope()
    if scope is None:
        return None
    counted: list[tuple[str, int]] = []
    for array in arrays:
        key = "jax", id(array)
        if charge(scope, array, key, array.nbytes):
            counted.append(key)
            continue
        for key in counted:
            entry = CHARGES.pop(key, None)
            if entry is not None:
                entry.drop()
        return refused(f"jax.Array of shape {tuple(array.shape)} and type {array.dtype}", array.nbytes)
    return None


def uncover() -> None:
    """See to it that the hook is called on this thread: checks for NaNs that were switched off before leave it out."""
    for place in _PLACES:
        place.uncover()
