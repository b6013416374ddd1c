"""Births of JAX arrays. They are found in three ways.

* JAX calls a hook after each call of compiled code from its cache, which nearly every call is;
* first calls, which compile a function, and ``device_put`` are wrapped;
* arrays that are made in other ways are found by comparing ``jax.live_arrays()`` with the arrays
  that are known.
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

from ...scopes.base.process import PATCHES, Patch, at_forks
from ...scopes.base.sites import is_inside
from ...scopes.compiled import ENTERING, ScopeState
from ...scopes.context import CLOSED, CURRENT, innermost_scope
from ...scopes.framework import recording
from ...scopes.identity import DEAD, LIVE, release
from ...scopes.kinds import Kind
from ...scopes.ownership import born, born_late
from ..arena.budgets import BUDGETS, refused
from ..patches import JAX_CALLS, JAX_HOOK, JAX_TRANSFERS

__all__ = [
    "ARRAY",
    "BIRTHS",
    "look",
    "pass_over_aliases",
    "see_births",
    "uncover",
]

# The live arrays of JAX, and which of them are known.


_bridge: Final[Any] = import_module("jax._src.xla_bridge")
_jax: Final[Any] = import_module("jax")
ARRAY: Final[Any] = import_module("jax._src.array").ArrayImpl
"""The class of arrays that have memory."""


@final
class _Seen(ref[Any]):
    """A weak reference to an array that is known and that no scope owns by birth."""

    __slots__ = ("key", "thread")
    # The ``id`` of the array.
    key: int
    # The identifier of the thread that called `pass_over`.
    thread: int


SEEN: Final[dict[int, _Seen]] = {}
"""By ``id``, the known arrays that no scope owns by birth."""


def _forget(entry: _Seen, seen: dict[int, _Seen] = SEEN) -> None:
    if seen.get(entry.key) is entry:
        del seen[entry.key]


def arrays_of_jax() -> list[Any]:
    """Return all arrays of the process, on all devices that the program has initialised."""
    if not _bridge.backends_are_initialized():
        return []
    return [array for backend in list(_bridge.backends()) for array in _jax.live_arrays(backend)]


def unknown_arrays() -> list[Any]:
    """Return the live arrays that are not known yet."""
    return [
        array for array in arrays_of_jax() if id(array) not in LIVE and id(array) not in SEEN and id(array) not in DEAD
    ]


def pass_over(array: Any) -> None:
    """Note that an array is known and that no scope owns it by birth."""
    entry = _Seen(array, _forget)
    entry.key = id(array)
    entry.thread = threading.get_ident()
    SEEN[entry.key] = entry


def _is_left_to_nobody(key: int) -> bool:
    """Return whether this thread has passed over an array, given its ``id``.

    Another thread may have met a new array of this thread, and passed over it because it did not
    know the owner. That does not count.
    """
    entry = SEEN.get(key)
    return entry is not None and entry.thread == threading.get_ident()


def addresses_of(array: Any) -> set[int]:
    """Return the addresses of an array's memory on each device; empty if it has none."""
    if array.is_deleted() or array.nbytes == 0:
        return set()
    parts: Iterable[Any] = [array] if len(array.devices()) == 1 else array._arrays
    return {part.unsafe_buffer_pointer() for part in parts}


# The traceback that JAX keeps of the birth of each array shows which scope owns it.


_HOME: Final = os.path.dirname(str(import_module("jax").__file__)) + os.sep
"""The folder of JAX."""
_TRACERS: Final = (os.path.join("interpreters", "partial_eval.py"), os.path.join("interpreters", "mlir.py"))
"""The files of JAX whose code traces or lowers a function.

Arrays that are computed meanwhile are constants of the compiled code, which keeps them.
"""
_verdicts: Final[dict[int, tuple[CodeType, bool]]] = {}
"""A cache of `_traces`: by ``id`` of a code object, the code and the answer."""
_MOST_REMEMBERED: Final = 20_000
"""The cache is emptied when it has so many code objects, which it keeps alive."""

_Frames = tuple[list[CodeType], list[int]]
"""The code objects of a stack, and the offsets of their instructions."""


def is_constant(codes: list[CodeType]) -> bool:
    """Return whether an array born under these code objects is a constant of compiled code."""
    return any(_traces(code) for code in codes)


def _traces(code: CodeType) -> bool:
    """Return whether code of JAX traces or lowers a function."""
    known = _verdicts.get(id(code))
    if known is None:
        if len(_verdicts) >= _MOST_REMEMBERED:
            _verdicts.clear()
        known = _verdicts[id(code)] = code, code.co_filename.startswith(_HOME) and code.co_filename.endswith(_TRACERS)
    return known[1]


def frames_of(array: Any) -> _Frames:
    """Return codes and instructions of the stack of an array's birth, innermost first.

    The stack is empty if JAX kept none.
    """
    traceback = array.traceback
    if traceback is None:
        return [], []
    frames: _Frames = traceback.raw_frames()
    return frames


# The hook that JAX calls after each call of compiled code from its cache, in the context of the
# caller.


_api: Final[Any] = import_module("jax._src.api")
_config: Final[Any] = import_module("jax._src.config")
# Its value is True while a function is traced and JAX computes a constant of it at once.
_folding: Final[Any] = _config.eager_constant_folding
_tree_leaves: Final[Callable[[object], list[Any]]] = import_module("jax").tree_util.tree_leaves


@final
class _Births:
    """How the births of arrays are recorded. The one instance is `BIRTHS`.

    Attributes
    ----------
    kind : Kind
        The kind of JAX's arrays. Set before any birth is seen.
    record : callable or None
        While a leak detector is open, the function that records arrays born outside of scopes.
    is_forked : bool
        Whether this is a forked child, where JAX cannot be used: a thread of the parent may have
        held its locks.
    """

    __slots__ = ("is_forked", "kind", "record")

    kind: Kind

    def __init__(self) -> None:
        self.record: Callable[[Any], None] | None = None
        self.is_forked = False


BIRTHS: Final = _Births()


class _Hook:
    """The hook that JAX calls after each cached call of compiled code.

    It also calls the hook that was installed before, which is in the attribute `before`.
    """

    __slots__ = ("before",)

    def __init__(self) -> None:
        self.before: Callable[..., object] | None = None

    @recording
    def __call__(self, function: object, args: object, kwargs: object, result: Any) -> None:
        if self.before is not None:
            self.before(function, args, kwargs, result)
        scope = CURRENT.get()
        if scope is None and BIRTHS.record is None:
            return
        if type(result) is ARRAY and scope is not None and scope._direct and not BUDGETS.scopes:
            # The quick way, for nearly all calls.
            if id(result) not in LIVE and not _folding.value:
                if SEEN:
                    SEEN.pop(id(result), None)
                born(result, BIRTHS.kind)
            return
        arrays = [result] if type(result) is ARRAY else _arrays_in(result)
        arrays = [array for array in arrays if id(array) not in LIVE]
        if arrays and not _folding.value:
            # If a budget refuses the result, this frame is in the traceback; the caller drops the
            # result.
            del result
            call_listeners(arrays)


@recording
def call_listeners(arrays: list[Any]) -> None:
    """Record the births of arrays in the current scope; without one, record them as unowned.

    Parameters
    ----------
    arrays : list of jax.Array
        New arrays, each once. Emptied if a budget refuses them.

    Raises
    ------
    MemoryError
        A budget refuses them. None of them is born then.
    """
    if innermost_scope() is None:
        record = BIRTHS.record
        if record is not None:
            for array in arrays:
                record(array)
        return
    refusal = _refusal_of(arrays) if BUDGETS.scopes else None
    if refusal is not None:
        arrays.clear()
        try:
            raise refusal
        finally:
            del refusal
    for array in arrays:
        SEEN.pop(id(array), None)
        born(array, BIRTHS.kind)


_HOOK: Final = _Hook()


def _arrays_in(result: object) -> list[Any]:
    found: list[Any] = [leaf for leaf in _tree_leaves(result) if type(leaf) is ARRAY]
    return list({id(array): array for array in found}.values())


@final
class _HookState:
    """Replaces JAX's holder of its hook.

    JAX's checks for NaNs install their hook through it, which must not displace this library's.
    """

    __slots__ = ("_place", "_unset")

    def __init__(self, place: Any) -> None:
        self._place = place
        self._unset = _config.config_ext.unset
        self.set_global(place.get_global())

    def set_global(self, hook: Callable[..., object] | None) -> None:
        """Set the hook of all threads, which is called in addition to this library's."""
        _HOOK.before = hook
        self._place.set_global(_HOOK)

    def set_local(self, hook: Callable[..., object] | None) -> None:
        """Set the hook of this thread; None means that of all threads."""
        if hook is None:
            self._place.set_local(self._unset)
            return
        both = _Hook()
        both.before = hook
        self._place.set_local(both)

    def uncover(self) -> None:
        """Remove the None that a check for NaNs leaves on this thread when it is switched off."""
        if self._place.get_local() is None:
            self._place.set_local(self._unset)

    def take_out(self) -> Any:
        """Restore JAX's own holder of the hook, and return it."""
        before, _HOOK.before = _HOOK.before, None
        self._place.set_global(before)
        return self._place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)


@final
class _HookOfStates:
    """The holder of the hook before JAX 0.8: attributes of the states of `jax_jit`."""

    __slots__ = ("_jit",)

    def __init__(self, jit: Any) -> None:
        self._jit = jit

    def get_global(self) -> Any:
        return self._jit.global_state().post_hook

    def set_global(self, hook: Any) -> None:
        self._jit.global_state().post_hook = hook

    def get_local(self) -> Any:
        return self._jit.thread_local_state().post_hook

    def set_local(self, hook: Any) -> None:
        self._jit.thread_local_state().post_hook = None if hook is _config.config_ext.unset else hook


@final
class _Jit:
    """Replaces `jax_jit` before JAX 0.8, by which checks for NaNs install their hook."""

    def __init__(self, jit: Any, place: _HookState) -> None:
        self._jit = jit
        self._place = place

    def global_state(self) -> _HookWriter:
        return _HookWriter(self._jit.global_state(), self._place.set_global)

    def thread_local_state(self) -> _HookWriter:
        return _HookWriter(self._jit.thread_local_state(), self._place.set_local)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jit, name)


@final
class _HookWriter:
    """A state of `jax_jit` whose hook is set through `_HookState`."""

    __slots__ = ("_set", "_state")

    def __init__(self, state: Any, write: Callable[[Any], None]) -> None:
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_set", write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "post_hook":
            self._set(value)
        else:
            setattr(self._state, name, value)


_PLACES: Final[list[_HookState]] = []
"""The installed `_HookState`, or nothing."""


def install_hook() -> None:
    """Install the hook, where this version of JAX has a place for it."""
    PATCHES.change(JAX_HOOK, _install_hook, _take_out)


def _install_hook() -> bool:
    _take_out()
    place = getattr(_api, "_post_hook_state", None)
    if place is not None:
        _PLACES.append(_HookState(place))
        _api._post_hook_state = _PLACES[0]
        return True
    jit = getattr(_api, "jax_jit", None)
    if jit is None or not hasattr(jit.global_state(), "post_hook"):
        return False
    _PLACES.append(_HookState(_HookOfStates(jit)))
    _api.jax_jit = _Jit(jit, _PLACES[0])
    return True


def _take_out() -> None:
    if _PLACES:
        place = _PLACES.pop().take_out()
        if isinstance(place, _HookOfStates):
            _api.jax_jit = place._jit
        else:
            _api._post_hook_state = place


def _refusal_of(arrays: list[Any]) -> MemoryError | None:
    """Count new arrays against the budgets; return the error if one refuses."""
    scope = innermost_scope()
    if scope is None:
        return None
    counted: list[tuple[str, int]] = []
    for array in arrays:
        key = "jax", id(array)
        if BUDGETS.charge(scope, array, key, array.nbytes):
            counted.append(key)
            continue
        BUDGETS.forget(counted)
        return refused(f"jax.Array of shape {tuple(array.shape)} and type {array.dtype}", array.nbytes)
    return None


def uncover() -> None:
    """Make sure that the hook is called on this thread.

    It is not after a check for NaNs was switched off on the thread.
    """
    for place in _PLACES:
        place.uncover()


# Births that JAX's hook does not see: first calls of functions, and ``device_put``.
#
# The first call of a function compiles it, and Python code of JAX returns the results, on the
# thread and in the context of the caller. ``jnp.asarray``, ``jnp.array`` and unpickling put data on
# a device, also by Python code. Both functions are wrapped if this version of JAX has them.
# Constants of compiled functions are made in the same ways, and stay unowned.


_Array: Final[Any] = import_module("jax").Array


@recording
def _record_results(results: Iterable[Any]) -> None:
    """Record the births of arrays among results, except constants."""
    fresh: list[Any] = []
    result: Any = None
    array: Any = None
    for result in results:
        # An array of random number keys holds an array.
        array = getattr(result, "_base_array", None) if type(result).__name__ == "PRNGKeyArray" else result
        key = id(array)
        if type(array) is not ARRAY or key in LIVE or key in DEAD or _is_left_to_nobody(key):
            continue
        codes = frames_of(array)[0]
        if not codes or is_constant(codes):
            pass_over(array)
        else:
            fresh.append(array)
    if fresh:
        # If a budget refuses the result, this frame is in the traceback; the caller drops the
        # result.
        results = ()
        result = array = None
        call_listeners(fresh)


def _telling_of_calls(execute: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute)
    @recording
    def recorded_call(*args: Any) -> Any:
        results = execute(*args)
        if BIRTHS.record is not None or CURRENT.get() is not None:
            try:
                _record_results(results)
            except MemoryError:
                del results
                raise
        return results

    return recorded_call


def _telling_of_transfers(put: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(put)
    @recording
    def recorded_call(*given: Any, **options: Any) -> Any:
        results = put(*given, **options)
        if BIRTHS.record is not None or CURRENT.get() is not None:
            try:
                # The result for an argument that is an array may be that array, or share its
                # memory: `look` handles such results.
                _record_results(
                    [result for thing, result in zip(given, results, strict=True) if not isinstance(thing, _Array)]
                )
            except MemoryError:
                del results
                raise
        return results

    return recorded_call


def wrap_calls_and_transfers() -> None:
    """Wrap first calls and transfers, if this version of JAX has these functions."""
    _wrap_way(JAX_CALLS, "jax._src.interpreters.pxla", "ExecuteReplicated.__call__", _telling_of_calls)
    _wrap_way(JAX_TRANSFERS, "jax._src.dispatch", "_batched_device_put_impl", _telling_of_transfers)
    transfers: Any = getattr(import_module("jax._src.dispatch"), "device_put_p", None)
    if getattr(getattr(transfers, "impl", None), "__name__", "") == "_batched_device_put_impl":
        # Before JAX 0.8 the primitive refers to the function itself, not to its name.
        _wrap_way(JAX_TRANSFERS, "jax._src.dispatch", "device_put_p.impl", _telling_of_transfers)


def _wrap_way(patch: Patch, module: str, path: str, wrap: Callable[[Any], Any]) -> None:
    *classes, name = path.split(".")
    try:
        owner: Any = import_module(module)
        for cls in classes:
            owner = getattr(owner, cls)
    except (ImportError, AttributeError) as error:
        PATCHES.fail(patch, str(error))
        return
    PATCHES.replace(patch, owner, name, wrap)


# Births that are found late.
#
# Arrays that are made in other ways (a copy to another device, the shards of an array) are found in
# ``jax.live_arrays()`` when a scope is entered or left, and whenever somebody asks or counts. That
# list has the arrays of the whole process. Therefore a scope of this thread owns such an array only
# if the traceback that JAX keeps of the array's birth leads through the scope's block, and cannot
# be that of another thread or task.


class _Local(threading.local):
    def __init__(self) -> None:
        # The scopes that were entered and not left on this thread, with the code of their blocks.
        self.scopes: list[tuple[ScopeState, CodeType]] = []


_LOCAL: Final = _Local()


def look(asked: ScopeState | None = None) -> None:
    """Record arrays that were born or deleted unseen on this thread.

    Parameters
    ----------
    asked : ScopeState, optional
        Only the arrays of this scope are checked for deletion; those of all scopes if left out.
    """
    if BIRTHS.is_forked:
        return
    for scope in [scope for scope, _ in _LOCAL.scopes] if asked is None else [asked]:
        if scope._state != CLOSED:
            _release_donated(scope)
    _find_births()


def _find_births() -> None:
    """Find arrays that were born unseen on this thread, and record those that a scope owns.

    The others are passed over.
    """
    scopes = _LOCAL.scopes
    while scopes and scopes[-1][0]._state == CLOSED:
        scopes.pop()
    unknown = unknown_arrays()
    if not unknown:
        return
    bottom = _getframe(0)
    while bottom.f_back is not None:
        bottom = bottom.f_back
    blocks: dict[int, ScopeState] | None = None
    taken: list[tuple[ScopeState, Any]] = []
    for array in unknown:
        codes = frames_of(array)[0]
        if codes and codes[-1] is not bottom.f_code:
            # It was born on another thread, which finds it itself.
            continue
        if blocks is None:
            is_sure = bool(scopes) and _is_only_task()
            blocks = {id(code): scope for scope, code in scopes if scope._state != CLOSED} if is_sure else {}
        owner = next((blocks[id(code)] for code in codes if id(code) in blocks), None)
        if owner is None or owner._state == CLOSED or is_constant(codes):
            pass_over(array)
        else:
            taken.append((owner, array))
    if taken:
        _take(taken)


def _release_donated(scope: ScopeState) -> None:
    """Release arrays of a scope that the program has deleted, or donated to a call."""
    for entry in list(scope._entries):
        if entry.kind is BIRTHS.kind:
            array = entry()
            if array is not None and array.is_deleted():
                release(entry)


def _take(taken: list[tuple[ScopeState, Any]]) -> None:
    """Record births, except of arrays that share memory with an older one.

    Deleting one of them would free the memory of both.
    """
    known: set[int] = set()
    fresh = {id(array) for _, array in taken}
    for array in arrays_of_jax():
        if id(array) not in fresh:
            known.update(addresses_of(array))
    for scope, array in taken:
        addresses = addresses_of(array)
        if not known.isdisjoint(addresses):
            pass_over(array)
            continue
        known.update(addresses)
        if BUDGETS.scopes:
            # The array exists already and cannot be refused. It is counted if it fits the budget.
            BUDGETS.charge(scope, array, ("jax", id(array)), array.nbytes)
        born_late(array, BIRTHS.kind, scope)


def pass_over_aliases(array: Any) -> None:
    """Pass over the arrays that JAX has just made to lend the memory of an array.

    No scope may own them: deleting one while it is lent aborts the process.
    """
    addresses = addresses_of(array)
    for other in unknown_arrays():
        if other is not array and not addresses.isdisjoint(addresses_of(other)):
            pass_over(other)


def _is_only_task() -> bool:
    """Return whether a traceback can only belong to this thread and its running task."""
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


def entered(scope: ScopeState) -> None:
    """Record arrays that were born unseen before a scope, and note the scope."""
    if not BIRTHS.is_forked:
        _find_births()
    uncover()
    if scope.budget is not None:
        BUDGETS.scopes[scope] = None
    frame: FrameType = _getframe(1)
    # Skip frames of this package, and frames that enter the scope for their caller.
    while frame.f_back is not None and (frame.f_code.co_name in ENTERING or is_inside(frame)):
        frame = frame.f_back
    _LOCAL.scopes.append((scope, frame.f_code))


def left(scope: ScopeState) -> None:
    """Record arrays that were born unseen in a scope, before it releases what it owns."""
    if not BIRTHS.is_forked:
        _release_donated(scope)
        _find_births()
    if scope.budget is not None:
        BUDGETS.scopes.pop(scope, None)
    scopes = _LOCAL.scopes
    if scopes and scopes[-1][0] is scope:
        scopes.pop()
    else:
        scopes[:] = [row for row in scopes if row[0] is not scope]


def _forget_inherited() -> None:
    _LOCAL.scopes.clear()
    BIRTHS.is_forked = True


def see_births(kind: Kind) -> None:
    """Record births in scopes from now on."""
    BIRTHS.kind = kind
    look()
    install_hook()
    wrap_calls_and_transfers()
    at_forks(in_child=_forget_inherited)
