"""Seeing births of JAX's arrays, by ways that complete each other.

A call of compiled code that JAX has in its cache, which nearly every call is, ends in a hook of JAX's own, on the
thread and in the context of the caller: what it returns is born in the current scope. So is what a first call returns,
which compiles, and what ``device_put`` makes of other things than arrays: see `_jax_uncached`. What comes into being
otherwise (a copy to another device, the shards of an array) is found as the difference of ``jax.live_arrays()`` when a
scope is entered or left, and whenever somebody asks or counts. That list is the whole process's, so an array of it is
taken only where the traceback that JAX keeps of its birth leads through the block of a scope that is open on this
thread, and can be of no other thread or task.
"""

from __future__ import annotations

import os
import sys
import threading
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Final

from ..scopes._births import born_in
from ..scopes._current import CLOSED, ENTERING
from ..scopes._entries import release
from ..scopes._estates import UNSEEN
from ..scopes._instruments import ENTERED, LEFT
from ..scopes._kinds import Kind
from ..scopes._scope import DisposeScope
from ..scopes.leaks._site import is_inside
from ._charges import BUDGETED, charge, watch_budget, watch_no_more
from ._jax_hook import hang_in, uncover
from ._jax_live import addresses_of, live_arrays, pass_over, unknown_arrays
from ._jax_tracebacks import frames_of, is_constant
from ._jax_uncached import wrap_ways

__all__ = ["look", "pass_over_aliases", "see_births"]

_KIND: Final[list[Kind]] = []


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
        if entry.kind is _KIND[0]:
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
            # It is there, and has been since some other line: counted where it fits, refused it cannot be.
            charge(scope, array, ("jax", id(array)), array.nbytes)
        born_in(array, _KIND[0], scope)


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
    # Past this package, where it is not compiled, and past what enters a scope on behalf of a block.
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
    _KIND.append(kind)
    look()
    hang_in(kind)
    wrap_ways()
    ENTERED.append(entered)
    LEFT.append(left)
    UNSEEN.append(look)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_inherited)
