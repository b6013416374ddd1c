"""Births that JAX's hook does not tell of: by calls of compiled code that are in no cache, and by ``device_put``.

The first call of a function compiles it, and what it returns comes from Python code of JAX's, on the thread and in the
context of the caller; so does what is put on a device: ``jnp.asarray``, ``jnp.array``, unpickling. Both are wrapped
where this version of JAX has them. What a compiled function keeps as a constant of it comes by the same ways, and is
nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from typing import Any, Final

from ..scopes._current import CURRENT
from ..scopes._entries import DEAD, LIVE
from ._jax_hook import SIGHTINGS, tell
from ._jax_live import ARRAY, SEEN, pass_over
from ._jax_tracebacks import frames_of, is_constant

__all__ = ["wrap_ways"]

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
                # What was an array before may be the same one, or share its memory, which `look` considers.
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
