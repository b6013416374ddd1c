"""The scopes of a thread, for PyTorch: while one is open there that needs it, its mode is on the thread's stack."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..scopes._current import CLOSED, current_scope
from ..scopes._instruments import ENTERED, LEFT, LISTENERS
from ..scopes._kinds import Kind
from ..scopes._scope import DisposeScope
from ._charges import BUDGETED, watch_budget, watch_no_more
from ._torch_allocations import SEEN, see_allocations, tell_late
from ._torch_births import MODE
from ._torch_disposal import PINNED, drop_pinned
from ._torch_extension import TORCH_HOT
from ._torch_modes import (
    LOCAL,
    WATCHES,
    ThreadState,
    add_mode,
    depth,
    pop,
    push,
    put_on,
    remove_mode,
    resume_after_a_failed_step,
    take_off,
)
from ._torch_results import KIND
from ._torch_saved import keep_what_hooks_save

__all__ = ["entered", "left", "see_births"]


def entered(scope: DisposeScope) -> None:
    """Watch this thread from now on, where it is not watched already and births are not seen without that."""
    here = LOCAL.here
    if here.stepping:
        resume_after_a_failed_step(here)
    here.scopes.append(scope)
    watch_budget(scope)
    if (not here.modes or here.modes[-1] is not MODE) and (not SEEN or BUDGETED or (LISTENERS and not WATCHES)):
        add_mode(here, MODE)


def left(scope: DisposeScope) -> None:
    """Stop watching when the last of the scopes that were entered on this thread is left."""
    watch_no_more(scope)
    tell_late()
    here = LOCAL.here
    scopes = here.scopes
    if scopes and scopes[-1] is scope:
        scopes.pop()
    elif scope in scopes:
        scopes.remove(scope)
    else:
        # It was entered on another thread, which finds it closed when it enters or leaves one of its own.
        return
    while scopes and scopes[-1]._state == CLOSED:
        scopes.pop()
    if not scopes:
        remove_mode(here, MODE)
    if PINNED:
        drop_pinned()


def _forget_inherited() -> None:
    here = LOCAL.here
    take_off()
    here.scopes.clear()
    # A detector that is open in the parent is open in the child.
    here.modes = tuple(mode for mode in here.modes if mode is not MODE)
    here.watched = bool(here.modes)
    here.compiled = None
    here.stepping = 0
    here.untold = []
    put_on()


def _seam() -> tuple[Callable[[DisposeScope], object], Callable[[DisposeScope], object]]:
    """`entered` and `left`, compiled where they can be."""
    if TORCH_HOT is None:
        return entered, left
    TORCH_HOT.bind_seam(
        {
            "DisposeScope": DisposeScope,
            "LOCAL": LOCAL,
            "MODE": MODE,
            "PINNED": PINNED,
            "ThreadState": ThreadState,
            "depth": depth,
            "entered": entered,
            "left": left,
            "pop": pop,
            "push": push,
        }
    )
    return TORCH_HOT.entered, TORCH_HOT.left


def see_births(kind: Kind) -> None:
    """Watch every thread on which a scope is entered from now on, and this one where one is open."""
    KIND.append(kind)
    # Before anything is seen: another thread may make tensors in a scope meanwhile.
    enter, leave = _seam()
    if see_allocations(kind):
        keep_what_hooks_save(TORCH_HOT.unborn)
    else:
        MODE.learn()
        keep_what_hooks_save(None)
    ENTERED.append(enter)
    LEFT.append(leave)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_inherited)
    scope = current_scope()
    opened: list[DisposeScope] = []
    while scope is not None:
        opened.append(scope)
        scope = scope.outer
    for outer in reversed(opened):
        entered(outer)
