"""Seeing births of JAX's arrays, by ways that complete each other.

A call of compiled code that JAX has in its cache ends in a hook of JAX's own. First calls and
``device_put`` are wrapped. Whatever comes into being otherwise is found as the difference of
``jax.live_arrays()``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Final, final
from weakref import ref

from ...scopes.context import CLOSED, CURRENT, ENTERING, current_scope
from ...scopes.forks import at_forks
from ...scopes.identity import DEAD, LIVE, release
from ...scopes.kinds import Kind
from ...scopes.ownership import born, born_late
from ...scopes.scope import DisposeScope
from ...scopes.sites import is_inside
from ..arena.budgets import BUDGETED, CHARGES, charge, refused, watch_budget, watch_no_more

__all__ = [
    "ARRAY",
    "SEEN",
    "SIGHTINGS",
    "addresses_of",
    "frames_of",
    "hang_in",
    "is_constant",
    "live_arrays",
    "look",
    "pass_over",
    "pass_over_aliases",
    "see_births",
    "tell",
    "uncover",
    "unknown_arrays",
    "wrap_ways",
]

# The arrays of JAX that are there: what the process has, which of them are known, and where their
# memory is.


_bridge: Final[Any] = import_module("jax._src.xla_bridge")
_jax: Final[Any] = import_module("jax")
ARRAY: Final[Any] = import_module("jax._src.array").ArrayImpl
"""The class of arrays that have memory."""


@final
class _Seen(ref[Any]):
    """A weak reference to an array that is no scope's by birth."""

    __slots__ = ("key",)
    key: int


SEEN: Final[dict[int, _Seen]] = {}
"""Arrays that no scope owns by birth, by id."""


def _forget(entry: _Seen, seen: dict[int, _Seen] = SEEN) -> None:
    if seen.get(entry.key) is entry:
        del seen[entry.key]


def live_arrays() -> list[Any]:
    """Every array of the process, on all its devices.

    Starts no device that the program has not started.
    """
    if not _bridge.backends_are_initialized():
        return []
    return [array for backend in list(_bridge.backends()) for array in _jax.live_arrays(backend)]


def unknown_arrays() -> list[Any]:
    """Those that have been met nowhere yet."""
    return [
        array for array in live_arrays() if id(array) not in LIVE and id(array) not in SEEN and id(array) not in DEAD
    ]


def pass_over(array: Any) -> None:
    """Let no scope own an array by birth."""
    entry = _Seen(array, _forget)
    entry.key = id(array)
    SEEN[entry.key] = entry


def addresses_of(array: Any) -> set[int]:
    """Where its memory begins, on each device; nowhere for what is empty or deleted."""
    if array.is_deleted() or array.nbytes == 0:
        return set()
    parts: Iterable[Any] = [array] if len(array.devices()) == 1 else array._arrays
    return {part.unsafe_buffer_pointer() for part in parts}


# The traceback that JAX keeps of the birth of each array, which tells whose it is.


_HOME: Final = os.path.dirname(str(import_module("jax").__file__)) + os.sep
# What is computed while a function is traced, or lowered, is a constant of its compiled code, which
# keeps it.
_TRACERS: Final = (os.path.join("interpreters", "partial_eval.py"), os.path.join("interpreters", "mlir.py"))
_verdicts: Final[dict[int, tuple[CodeType, bool]]] = {}
_REMEMBERED_AT_MOST: Final = 20_000

_Frames = tuple[list[CodeType], list[int]]


def is_constant(codes: list[CodeType]) -> bool:
    """Whether what was born below these codes is a constant of compiled code."""
    return any(_traces(code) for code in codes)


def _traces(code: CodeType) -> bool:
    known = _verdicts.get(id(code))
    if known is None:
        if len(_verdicts) >= _REMEMBERED_AT_MOST:
            _verdicts.clear()
        known = _verdicts[id(code)] = code, code.co_filename.startswith(_HOME) and code.co_filename.endswith(_TRACERS)
    return known[1]


def frames_of(array: Any) -> _Frames:
    """Codes and instructions of the stack on which an array was born, innermost first; empty where JAX kept none."""
    traceback = array.traceback
    if traceback is None:
        return [], []
    frames: _Frames = traceback.raw_frames()
    return frames


# The hook that JAX calls after each call of compiled code from its cache, in the context of the
# caller.


_api: Final[Any] = import_module("jax._src.api")
_config: Final[Any] = import_module("jax._src.config")
# On while a function is being traced and something is computed at once, by request: that is a
# constant of it.
_folding: Final[Any] = _config.eager_constant_folding
_tree_leaves: Final[Callable[[object], list[Any]]] = import_module("jax").tree_util.tree_leaves

_HOOK_KIND: Final[list[Kind]] = []

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
                born(result, _HOOK_KIND[0])
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
        born(array, _HOOK_KIND[0])


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
    _HOOK_KIND.append(kind)
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


# Births that JAX's hook does not tell of: by calls of compiled code that are in no cache, and by
# ``device_put``.
#
# The first call of a function compiles it, and what it returns comes from Python code of JAX's, on
# the thread and in the context of the caller; so does what is put on a device: ``jnp.asarray``,
# ``jnp.array``, unpickling. Both are wrapped where this version of JAX has them. What a compiled
# function keeps as a constant of it comes by the same ways, and is nobody's.


_Array: Final[Any] = import_module("jax").Array


def _see(results: Iterable[Any]) -> None:
    """Tell of the arrays among results that are no constants."""
    fresh: list[Any] = []
    result: Any = None
    array: Any = None
    for result in results:
        # Keys of random numbers hold one.
        array = getattr(result, "_base_array", None) if type(result).__name__ == "PRNGKeyArray" else result
        key = id(array)
        if type(array) is not ARRAY or key in LIVE or key in SEEN or key in DEAD:
            continue
        codes = frames_of(array)[0]
        if not codes or is_constant(codes):
            pass_over(array)
        else:
            fresh.append(array)
    if fresh:
        # This frame is in the traceback of a refusal, and the caller drops what was refused.
        results = ()
        result = array = None
        tell(fresh)


def _telling_of_calls(execute: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute)
    def telling(*args: Any) -> Any:
        results = execute(*args)
        if SIGHTINGS or CURRENT.get() is not None:
            try:
                _see(results)
            except MemoryError:
                del results
                raise
        return results

    return telling


def _telling_of_transfers(put: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(put)
    def telling(*given: Any, **options: Any) -> Any:
        results = put(*given, **options)
        if SIGHTINGS or CURRENT.get() is not None:
            try:
                # What was an array before may be the same one, or share its memory, which `look`
                # considers.
                _see([result for thing, result in zip(given, results, strict=True) if not isinstance(thing, _Array)])
            except MemoryError:
                del results
                raise
        return results

    return telling


def _part(module: str, name: str) -> tuple[Any, Any]:
    """A module of JAX's insides and what it has under a name; None for what this version has not."""
    try:
        home = import_module(module)
    except ImportError:
        return None, None
    return home, getattr(home, name, None)


def wrap_ways() -> None:
    """Wrap both ways, where this version of JAX has them."""
    _, executable = _part("jax._src.interpreters.pxla", "ExecuteReplicated")
    if executable is not None:
        executable.__call__ = _telling_of_calls(executable.__call__)
    dispatch, put = _part("jax._src.dispatch", "_batched_device_put_impl")
    if put is not None:
        dispatch._batched_device_put_impl = _telling_of_transfers(put)


# Seeing births of JAX's arrays, by ways that complete each other.
#
# A call of compiled code that JAX has in its cache, which nearly every call is, ends in a hook of
# JAX's own, on the thread and in the context of the caller: what it returns is born in the current
# scope. So is what a first call returns, which compiles, and what ``device_put`` makes of other
# things than arrays: see `births`. What comes into being otherwise (a copy to another
# device, the shards of an array) is found as the difference of ``jax.live_arrays()`` when a scope
# is entered or left, and whenever somebody asks or counts. That list is the whole process's, so an
# array of it is taken only where the traceback that JAX keeps of its birth leads through the block
# of a scope that is open on this thread, and can be of no other thread or task.


_BIRTH_KIND: Final[list[Kind]] = []


class _Local(threading.local):
    def __init__(self) -> None:
        # The scopes that were entered on this thread and not left, each with the code of its block.
        self.scopes: list[tuple[DisposeScope, CodeType]] = []


_LOCAL: Final = _Local()

_FORKED: Final[list[bool]] = []
"""Not empty in a forked child, where JAX cannot be used: a thread of the parent may have held its locks."""


def look(asked: DisposeScope | None = None) -> None:
    """Find what came into being, or was deleted, unseen on this thread. For those who count.

    Parameters
    ----------
    asked : DisposeScope, optional
        The one that is counted: what others own is not looked through for deleted arrays.
    """
    if _FORKED:
        return
    for scope in [scope for scope, _ in _LOCAL.scopes] if asked is None else [asked]:
        if scope._state != CLOSED:
            _release_donated(scope)
    _find_births()


def _find_births() -> None:
    """Find the arrays that have come into being unseen on this thread, and record those that are a scope's."""
    scopes = _LOCAL.scopes
    while scopes and scopes[-1][0]._state == CLOSED:
        scopes.pop()
    unknown = unknown_arrays()
    if not unknown:
        return
    bottom = _getframe(0)
    while bottom.f_back is not None:
        bottom = bottom.f_back
    blocks: dict[int, DisposeScope] | None = None
    taken: list[tuple[DisposeScope, Any]] = []
    for array in unknown:
        codes = frames_of(array)[0]
        if codes and codes[-1] is not bottom.f_code:
            # Another thread's, which will look for itself.
            continue
        if blocks is None:
            alone = bool(scopes) and _is_alone()
            blocks = {id(code): scope for scope, code in scopes if scope._state != CLOSED} if alone else {}
        owner = next((blocks[id(code)] for code in codes if id(code) in blocks), None)
        if owner is None or owner._state == CLOSED or is_constant(codes):
            pass_over(array)
        else:
            taken.append((owner, array))
    if taken:
        _take(taken)


def _release_donated(scope: DisposeScope) -> None:
    """Take note of what the program has deleted itself, or donated to a call: it is disposed."""
    for entry in list(scope._entries):
        if entry.kind is _BIRTH_KIND[0]:
            array = entry()
            if array is not None and array.is_deleted():
                release(entry)


def _take(taken: list[tuple[DisposeScope, Any]]) -> None:
    """Record births, except of arrays that share their memory with one that was there: deleting frees it for both."""
    known: set[int] = set()
    fresh = {id(array) for _, array in taken}
    for array in live_arrays():
        if id(array) not in fresh:
            known.update(addresses_of(array))
    for scope, array in taken:
        addresses = addresses_of(array)
        if not known.isdisjoint(addresses):
            pass_over(array)
            continue
        known.update(addresses)
        if BUDGETED:
            # It is there, and has been since some other line: counted where it fits, refused it
            # cannot be.
            charge(scope, array, ("jax", id(array)), array.nbytes)
        born_late(array, _BIRTH_KIND[0], scope)


def pass_over_aliases(array: Any) -> None:
    """Let no scope own what JAX has just made to lend the memory of an array: deleting that while it is lent aborts."""
    addresses = addresses_of(array)
    for other in unknown_arrays():
        if other is not array and not addresses.isdisjoint(addresses_of(other)):
            pass_over(other)


def _is_alone() -> bool:
    """Whether a traceback of this thread's kind can only be of this thread, and of the task that runs on it."""
    if threading.get_ident() != threading.main_thread().ident and len(sys._current_frames()) > 2:
        return False
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return True
    try:
        return len(asyncio.all_tasks()) <= 1
    except RuntimeError:
        # No loop is running on this thread.
        return True


# ---------------------------------------------------------------------- the scopes of a thread


def entered(scope: DisposeScope) -> None:
    """Know what is there already, and watch for this scope from now on."""
    if not _FORKED:
        _find_births()
    uncover()
    watch_budget(scope)
    frame: FrameType = _getframe(1)
    # Past this package, where it is not compiled, and past what enters a scope on behalf of a
    # block.
    while frame.f_back is not None and (frame.f_code.co_name in ENTERING or is_inside(frame)):
        frame = frame.f_back
    _LOCAL.scopes.append((scope, frame.f_code))


def left(scope: DisposeScope) -> None:
    """Find what is this scope's, before it releases what it owns."""
    if not _FORKED:
        _release_donated(scope)
        _find_births()
    watch_no_more(scope)
    scopes = _LOCAL.scopes
    if scopes and scopes[-1][0] is scope:
        scopes.pop()
    else:
        scopes[:] = [row for row in scopes if row[0] is not scope]


def _forget_inherited() -> None:
    _LOCAL.scopes.clear()
    _FORKED.append(True)


def see_births(kind: Kind) -> None:
    """Watch for births in scopes from now on."""
    _BIRTH_KIND.append(kind)
    look()
    hang_in(kind)
    wrap_ways()
    at_forks(in_child=_forget_inherited)
