"""Find births of JAX arrays, in several ways that complement each other.

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

# The live arrays of JAX: those of the process, those that are known, and their addresses.


_bridge: Final[Any] = import_module("jax._src.xla_bridge")
_jax: Final[Any] = import_module("jax")
ARRAY: Final[Any] = import_module("jax._src.array").ArrayImpl
"""The class of arrays that have memory."""


@final
class _Seen(ref[Any]):
    """A weak reference to an array that no scope owns by birth."""

    __slots__ = ("key", "thread")
    key: int
    # The one that passed over it.
    thread: int


SEEN: Final[dict[int, _Seen]] = {}
"""Arrays that no scope owns by birth, by id."""


def _forget(entry: _Seen, seen: dict[int, _Seen] = SEEN) -> None:
    if seen.get(entry.key) is entry:
        del seen[entry.key]


def arrays_of_jax() -> list[Any]:
    """Return every array of the process, on all its devices.

    Starts no device that the program has not started.
    """
    if not _bridge.backends_are_initialized():
        return []
    return [array for backend in list(_bridge.backends()) for array in _jax.live_arrays(backend)]


def unknown_arrays() -> list[Any]:
    """Return the live arrays that are not known yet."""
    return [
        array for array in arrays_of_jax() if id(array) not in LIVE and id(array) not in SEEN and id(array) not in DEAD
    ]


def pass_over(array: Any) -> None:
    """Let no scope own an array by birth."""
    entry = _Seen(array, _forget)
    entry.key = id(array)
    entry.thread = threading.get_ident()
    SEEN[entry.key] = entry


def _is_left_to_nobody(key: int) -> bool:
    """Return whether no scope shall own an array that a call of this thread returns.

    Between the birth and here another thread may have met it and not known whose it is.
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
# Arrays that are computed while a function is traced or lowered are constants of its compiled code,
# which keeps them.
_TRACERS: Final = (os.path.join("interpreters", "partial_eval.py"), os.path.join("interpreters", "mlir.py"))
_verdicts: Final[dict[int, tuple[CodeType, bool]]] = {}
_REMEMBERED_AT_MOST: Final = 20_000

_Frames = tuple[list[CodeType], list[int]]


def is_constant(codes: list[CodeType]) -> bool:
    """Return whether an array born below these code objects is a constant of compiled code."""
    return any(_traces(code) for code in codes)


def _traces(code: CodeType) -> bool:
    known = _verdicts.get(id(code))
    if known is None:
        if len(_verdicts) >= _REMEMBERED_AT_MOST:
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
# On while a function is being traced and something is computed at once, by request: that is a
# constant of it.
_folding: Final[Any] = _config.eager_constant_folding
_tree_leaves: Final[Callable[[object], list[Any]]] = import_module("jax").tree_util.tree_leaves


@final
class _Births:
    """What the births of arrays are recorded with. The one instance is `BIRTHS`.

    Attributes
    ----------
    kind : Kind
        The kind of JAX's arrays; set before any birth is seen.
    record : callable or None
        What records the arrays that are born outside of all scopes, while a leak detector is open.
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

    It also calls the hook that was installed before.
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
            # This runs for each cached call.
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
    """Replaces JAX's holder of its hook, which JAX's checks for NaNs also use."""

    __slots__ = ("_place", "_unset")

    def __init__(self, place: Any) -> None:
        self._place = place
        self._unset = _config.config_ext.unset
        self.set_global(place.get_global())

    def set_global(self, hook: Callable[..., object] | None) -> None:
        """Set the function that is called on all threads, besides this library's."""
        _HOOK.before = hook
        self._place.set_global(_HOOK)

    def set_local(self, hook: Callable[..., object] | None) -> None:
        """Set the function that is called on this thread; None means the one of all threads."""
        if hook is None:
            self._place.set_local(self._unset)
            return
        ours = _Hook()
        ours.before = hook
        self._place.set_local(ours)

    def uncover(self) -> None:
        """Remove what a check that was switched off on this thread has left there."""
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
    """The place of the hook before JAX 0.8: an attribute of the states of `jax_jit`."""

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
    """What the checks for NaNs of such a JAX write their hook by, in the place of `jax_jit`."""

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

    A check for NaNs that was switched off before leaves it out.
    """
    for place in _PLACES:
        place.uncover()


# Births that JAX's hook does not see: by calls of compiled code that are in no cache, and by
# ``device_put``.
#
# The first call of a function compiles it, and what it returns comes from Python code of JAX's, on
# the thread and in the context of the caller; so does what is put on a device: ``jnp.asarray``,
# ``jnp.array``, unpickling. Both are wrapped where this version of JAX has them. What a compiled
# function keeps as a constant of it comes by the same ways, and is nobody's.


_Array: Final[Any] = import_module("jax").Array


@recording
def _see(results: Iterable[Any]) -> None:
    """Record the births of arrays among results, except constants."""
    fresh: list[Any] = []
    result: Any = None
    array: Any = None
    for result in results:
        # A key of random numbers holds an array.
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
                _see(results)
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
                # What was an array before may be the same one, or share its memory, which `look`
                # considers.
                _see([result for thing, result in zip(given, results, strict=True) if not isinstance(thing, _Array)])
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
        # Before JAX 0.8 the primitive has the function itself, and does not look for its name.
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


# Births of JAX arrays are seen in several ways that complement each other.
#
# A call of compiled code that JAX has in its cache, which nearly every call is, ends in a hook of
# JAX's own, on the thread and in the context of the caller: what it returns is born in the current
# scope. So is what a first call returns, which compiles, and what ``device_put`` makes of other
# things than arrays. What comes into being otherwise (a copy to another
# device, the shards of an array) is found as the difference of ``jax.live_arrays()`` when a scope
# is entered or left, and whenever somebody asks or counts. That list is the whole process's, so an
# array of it is taken only where the traceback that JAX keeps of its birth leads through the block
# of a scope that is open on this thread, and can be of no other thread or task.


class _Local(threading.local):
    def __init__(self) -> None:
        # The scopes that were entered on this thread and not left, each with the code of its block.
        self.scopes: list[tuple[ScopeState, CodeType]] = []


_LOCAL: Final = _Local()


def look(asked: ScopeState | None = None) -> None:
    """Find arrays that were born or deleted unseen on this thread, before anything is counted.

    Parameters
    ----------
    asked : ScopeState, optional
        The one that is counted: what others own is not looked through for deleted arrays.
    """
    if BIRTHS.is_forked:
        return
    for scope in [scope for scope, _ in _LOCAL.scopes] if asked is None else [asked]:
        if scope._state != CLOSED:
            _release_donated(scope)
    _find_births()


def _find_births() -> None:
    """Find arrays that were born unseen on this thread, and record those that a scope owns."""
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
            # It belongs to another thread, which looks for itself.
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
    """Record arrays that the program deleted or donated to a call as disposed."""
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
            # The array was made on an earlier line. It counts if it fits the budget, but cannot be
            # refused.
            BUDGETS.charge(scope, array, ("jax", id(array)), array.nbytes)
        born_late(array, BIRTHS.kind, scope)


def pass_over_aliases(array: Any) -> None:
    """Let no scope own what JAX has just made to lend the memory of an array.

    Deleting that while it is lent aborts the process.
    """
    addresses = addresses_of(array)
    for other in unknown_arrays():
        if other is not array and not addresses.isdisjoint(addresses_of(other)):
            pass_over(other)


def _is_only_task() -> bool:
    """Return whether a traceback can only be of this thread and its running task."""
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
    """Know what is there already, and watch for this scope from now on."""
    if not BIRTHS.is_forked:
        _find_births()
    uncover()
    if scope.budget is not None:
        BUDGETS.scopes[scope] = None
    frame: FrameType = _getframe(1)
    # Past this package, where it is not compiled, and past what enters a scope on behalf of a
    # block.
    while frame.f_back is not None and (frame.f_code.co_name in ENTERING or is_inside(frame)):
        frame = frame.f_back
    _LOCAL.scopes.append((scope, frame.f_code))


def left(scope: ScopeState) -> None:
    """Find what is this scope's, before it releases what it owns."""
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
    """Watch for births in scopes from now on."""
    BIRTHS.kind = kind
    look()
    install_hook()
    wrap_calls_and_transfers()
    at_forks(in_child=_forget_inherited)
