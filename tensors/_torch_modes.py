"""The stack of modes of each thread: what belongs onto it, and when it is off it.

The mode for births stands at the bottom, where nobody who pops his own mode meets it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import Any, Final, final

import torch
from torch.utils._device import DeviceContext

from ..scopes._current import CURRENT
from ..scopes._entry import Entry
from ..scopes._scope import DisposeScope
from ..scopes._statistics import LOCAL as LEDGERS
from ._torch_births import MODE

__all__ = [
    "LOCAL",
    "WATCHES",
    "ThreadState",
    "add_mode",
    "depth",
    "is_looked_at",
    "pause_births",
    "pop",
    "push",
    "put_on",
    "remove_mode",
    "resume_after_a_failed_step",
    "resume_births",
    "take_off",
]

_C: Final[Any] = torch._C
push: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
pop: Final[Callable[[], Any]] = _C._pop_torch_function_stack
depth: Final[Callable[[], int]] = _C._len_torch_function_stack


@final
class ThreadState:
    """What is so on one thread.

    Attributes
    ----------
    scopes : list of DisposeScope
        The scopes that were entered on it and not left.
    modes : tuple
        What belongs onto the thread's stack of modes, the bottom first: the mode for births where a scope is open and
        needs it, and what a leak detector watches with.
    watched : bool
        Whether there are any.
    compiled : frame, optional
        The frame of the outermost call of a compiled function, during which the mode is off the stack all the same.
    untold : list of Entry
        Births of which somebody is still to be told: see `_torch_allocations`.
    stepping : int
        The id of the frame of the outermost optimizer step that is running, during which the mode is off the stack as
        well; 0 where none is. Not the frame: it shall die when the step is over.
    """

    __slots__ = ("__weakref__", "compiled", "modes", "scopes", "stepping", "untold", "watched")

    scopes: list[DisposeScope]
    modes: tuple[object, ...]
    watched: bool
    compiled: FrameType | None
    stepping: int
    untold: list[Entry]

    def __init__(self) -> None:
        self.scopes = []
        self.modes = ()
        self.watched = False
        self.compiled = None
        self.stepping = 0
        self.untold = []


class _Local(threading.local):
    def __init__(self) -> None:
        self.here = ThreadState()
        # Of a tensor that is being made no Python code may count the birth: this thread's counts are there before.
        _ = LEDGERS.ledger


LOCAL: Final = _Local()
"""``LOCAL.here`` is the state of the calling thread."""

WATCHES: Final[list[object]] = []
"""Not empty while a leak detector sees the calls of every thread without a mode: see `_torch_calls`."""


def is_looked_at(here: ThreadState) -> bool:
    """Whether anybody wants to know what is made on this thread: a scope, or a leak detector."""
    return here.watched or bool(WATCHES) or CURRENT.get() is not None


def add_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack from now on; `MODE` above the others, for it shall see births after them."""
    others = here.modes
    here.modes = (*others, mode) if mode is MODE else (mode, *others)
    here.watched = True
    if here.compiled is None and not here.stepping:
        if depth() == len(others) and (mode is MODE or not others):
            # The quick way: there is nothing to be put below another.
            push(mode)
        else:
            take_off()
            put_on()


def remove_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack no more."""
    if not any(other is mode for other in here.modes):
        return
    quick = here.modes[-1] is mode and depth() == len(here.modes)
    before = here.modes
    here.modes = tuple(other for other in before if other is not mode)
    here.watched = bool(here.modes)
    if here.compiled is None and not here.stepping:
        if quick:
            pop()
        else:
            _take_off(before)
            put_on()


def pause_births(reason: int) -> None:
    """Take the mode off this thread's stack while a frame, given by its id, is running: its calls make no births."""
    here = LOCAL.here
    if not here.stepping:
        here.stepping = reason
        if here.watched and here.compiled is None:
            take_off()


def resume_births(here: ThreadState, reason: int) -> None:
    """Put the mode back where births were paused for a frame, which is over."""
    if not reason or here.stepping != reason:
        return
    here.stepping = 0
    if here.watched and here.compiled is None and here is LOCAL.here:
        put_on()


def resume_after_a_failed_step(here: ThreadState) -> None:
    """Put the mode back where the frame for which births were paused runs no more, but a traceback keeps it."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if id(frame) == here.stepping:
            return
        frame = frame.f_back
    resume_births(here, here.stepping)


def put_on() -> None:
    """Put the modes at the bottom of this thread's stack, but above that of a default device, which must be there."""
    modes = LOCAL.here.modes
    if not modes:
        return
    if not depth():
        for mode in modes:
            push(mode)
        return
    above = [pop() for _ in range(depth())]
    if above and isinstance(above[-1], DeviceContext):
        push(above.pop())
    for mode in modes:
        push(mode)
    for mode in reversed(above):
        push(mode)


def take_off() -> bool:
    """Take the modes off this thread's stack; tells whether one was there."""
    return _take_off(LOCAL.here.modes)


def _take_off(modes: tuple[object, ...]) -> bool:
    if len(modes) == 1 and depth() == 1:
        only = pop()
        if only is not modes[0]:
            push(only)
            return False
        return True
    above: list[Any] = []
    left_to_find = len(modes)
    while left_to_find and depth():
        mode = pop()
        if any(mode is ours for ours in modes):
            left_to_find -= 1
        else:
            above.append(mode)
    for mode in reversed(above):
        push(mode)
    return left_to_find < len(modes)
