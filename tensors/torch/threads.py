"""The scopes of a thread for PyTorch, and work that is handed to another thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import Context
from types import BuiltinFunctionType
from typing import Any, Final

from ...scopes.context import CLOSED, CURRENT, current_scope
from ...scopes.forks import at_forks
from ...scopes.kinds import Kind
from ...scopes.scope import DisposeScope
from ..arena.budgets import BUDGETED, watch_budget, watch_no_more
from .births import (
    LOCAL,
    MODE,
    SEAM,
    ThreadState,
    add_mode,
    depth,
    look,
    pop,
    push,
    put_on,
    remove_mode,
    resume_after_a_failed_step,
    runs_compiled,
    see_allocations,
    take_off,
)
from .disposal import PENDING
from .exclusions import keep_what_hooks_save
from .extension import TORCH_COMPILED

__all__ = [
    "entered",
    "left",
    "see_births",
    "watch_threads",
]

# The scopes of a thread, for PyTorch: while one is open there that needs it, its mode is on the
# thread's stack.


def entered(scope: DisposeScope) -> None:
    """Watch this thread from now on, where it is not watched already and births are not seen without that."""
    if PENDING.batches:
        PENDING.settle()
    here = LOCAL.here
    if here.stepping:
        resume_after_a_failed_step(here)
    was_off = runs_compiled(here)
    here.scopes.append(scope)
    if was_off and not here.stepping:
        put_on()
    watch_budget(scope)
    if (not here.modes or here.modes[-1] is not MODE) and (not SEAM.at_allocation or BUDGETED):
        add_mode(here, MODE)


def left(scope: DisposeScope) -> None:
    """Stop watching when the last of the scopes that were entered on this thread is left."""
    watch_no_more(scope)
    look()
    here = LOCAL.here
    here.pending = []
    was_off = runs_compiled(here)
    scopes = here.scopes
    if scope not in scopes:
        # It was entered on another thread, which finds it closed when it enters or leaves one of
        # its own.
        return
    if (SEAM.at_allocation or SEAM.detector is None) and all(
        other is scope or other._state == CLOSED for other in scopes
    ):
        # Before the scope is forgotten: after an interrupt it is left once more.
        remove_mode(here, MODE)
    scopes.remove(scope)
    while scopes and scopes[-1]._state == CLOSED:
        scopes.pop()
    if not was_off and not here.stepping and runs_compiled(here):
        take_off()
    if PENDING.batches:
        PENDING.settle()


def _forget_inherited() -> None:
    PENDING.forget_threads()
    here = LOCAL.here
    take_off()
    here.scopes.clear()
    # A detector that is open in the parent is open in the child.
    here.modes = tuple(mode for mode in here.modes if mode is not MODE)
    here.watched = bool(here.modes)
    here.compiled = None
    here.stepping = 0
    here.pending = []
    put_on()


def _seam() -> tuple[Callable[[DisposeScope], object], Callable[[DisposeScope], object]]:
    """`entered` and `left`, compiled; what is unusual comes to those here."""
    TORCH_COMPILED.bind_seam(
        {
            "DisposeScope": DisposeScope,
            "LOCAL": LOCAL,
            "MODE": MODE,
            "PENDING": PENDING.batches,
            "ThreadState": ThreadState,
            "depth": depth,
            "entered": entered,
            "left": left,
            "pop": pop,
            "push": push,
        }
    )
    return TORCH_COMPILED.entered, TORCH_COMPILED.left


def see_births(kind: Kind) -> tuple[Callable[[DisposeScope], object], Callable[[DisposeScope], object]]:
    """Watch this thread from now on where a scope is open.

    Returns
    -------
    entered, left : callable
        To be called whenever a scope is entered or left.
    """
    SEAM.kind = kind
    # Before anything is seen: another thread may make tensors in a scope meanwhile.
    enter, leave = _seam()
    if see_allocations(kind):
        keep_what_hooks_save(TORCH_COMPILED.unborn)
    else:
        MODE.records = True
        keep_what_hooks_save(None)
    at_forks(in_child=_forget_inherited)
    scope = current_scope()
    opened: list[DisposeScope] = []
    while scope is not None:
        opened.append(scope)
        scope = scope.outer
    for outer in reversed(opened):
        entered(outer)
    return enter, leave


# Work handed to another thread with ``contextvars.Context.run`` makes births on that thread too.
#
# Modes are per thread, and a context is entered in C, where nobody is told. So the two doors
# through which such work comes to a thread, ``ThreadPoolExecutor.submit`` (``asyncio.to_thread``
# and ``loop.run_in_executor`` go through it) and ``threading.Thread``, see to it that the thread is
# watched while the work runs. All other work passes through unchanged.


_submit: Final[Callable[..., Future[Any]]] = ThreadPoolExecutor.submit
_run: Final[Callable[[threading.Thread], None]] = threading.Thread.run


def watch_threads() -> None:
    """Watch each thread while it runs work in a context in which a scope is open, from now on."""
    executor: Any = ThreadPoolExecutor
    thread: Any = threading.Thread
    executor.submit = _submit_watched
    thread.run = _run_watched


def _context_of(work: Any) -> Context | None:
    """The context whose ``run`` some work is, or None where it is anything else."""
    while type(work) is functools.partial:
        work = work.func
    if type(work) is BuiltinFunctionType and type(work.__self__) is Context and work.__name__ == "run":
        return work.__self__
    return None


@contextmanager
def _watched(context: Context) -> Generator[None, None, None]:
    scope = context.get(CURRENT)
    if scope is None:
        yield
        return
    entered(scope)
    try:
        yield
    finally:
        left(scope)


def _in_watched(context: Context, work: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with _watched(context):
        return work(*args, **kwargs)


@functools.wraps(_submit)
def _submit_watched(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    context = _context_of(fn)
    if context is None:
        return _submit(self, fn, *args, **kwargs)
    return _submit(self, _in_watched, context, fn, args, kwargs)


@functools.wraps(_run)
def _run_watched(self: Any) -> None:
    context = _context_of(getattr(self, "_target", None))
    try:
        with nullcontext() if context is None else _watched(context):
            _run(self)
    finally:
        if PENDING.batches:
            PENDING.settle()
