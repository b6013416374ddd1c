"""Scopes and threads: when function modes are on a thread's stack, and which graphs it may record.

Also work that is handed to another thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import Context
from types import BuiltinFunctionType
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...scopes.base.errors import GraphRetainedError
from ...scopes.base.process import PATCHES, at_forks
from ...scopes.compiled import ScopeState
from ...scopes.context import CLOSED, CURRENT, innermost_scope
from ...scopes.kinds import Kind
from ..arena.budgets import BUDGETS
from ..patches import TORCH_THREADS
from . import compiled as TORCH_COMPILED
from .births import (
    MODE,
    SEAM,
    add_mode,
    flattened,
    look,
    put_on,
    remove_mode,
    resume_after_a_failed_step,
    see_allocations,
    take_off,
    transform_running,
)
from .compiled import forget_backward, thread_state
from .disposal import PENDING
from .exclusions import keep_what_hooks_save
from .graphs.graph import refuse_recording

__all__ = [
    "RefusingMode",
    "entered",
    "left",
    "see_births",
    "watch_threads",
]

_C: Final[Any] = torch._C


def _unknown_number() -> int:
    raise RuntimeError(f'graph="refuse" does not work with PyTorch {torch.__version__}, which does not number graphs')


_next_node: Final[Callable[[], int]] = getattr(_C._autograd, "_get_sequence_nr", _unknown_number)
"""Return the number that the next node of a graph on this thread will have."""
_set_grad_enabled: Final[Callable[[bool], None]] = _C._set_grad_enabled
_LEVELS: Final = 4
"""How many levels of lists, tuples and dicts in a call are searched: one for args and kwargs."""

# The scopes of each thread. A function mode is on the thread's stack while an open scope needs it.


def entered(scope: ScopeState) -> None:
    """Take note that a scope was entered on this thread; put modes on its stack where needed.

    Every scope calls this and `left`. So rare cases are tested here and handled elsewhere.
    """
    if PENDING.batches:
        PENDING.settle()
    here = thread_state()
    if here.stepping:
        resume_after_a_failed_step(here)
    was_off = here.runs_compiled
    here.scopes.append(scope)
    if was_off and not here.stepping:
        put_on()
    if scope.budget is not None:
        BUDGETS.scopes[scope] = None
    if (BUDGETS.scopes or not SEAM.at_allocation) and (not here.modes or here.modes[-1] is not MODE):
        add_mode(here, MODE)
    if scope._limits_recording:
        _limit_recording(scope)


def left(scope: ScopeState) -> None:
    """Take note that a scope was left; take `MODE` off this thread's stack after the last one."""
    if scope._limits_recording:
        _limit_no_more(scope)
    if scope.budget is not None:
        BUDGETS.scopes.pop(scope, None)
    # Tensors born in the scope must be looked at before they are released.
    look()
    here = thread_state()
    if here.pending:
        here.pending = []
    scopes = here.scopes
    if scope not in scopes:
        # It was entered on another thread. That thread drops it when it leaves a scope itself.
        return
    was_off = here.runs_compiled
    if (
        here.modes
        and (SEAM.at_allocation or SEAM.detector is None)
        and all(other is scope or other._state == CLOSED for other in scopes)
    ):
        # Before `scopes.remove`: after an interrupt in between, the scope is left again.
        remove_mode(here, MODE)
    scopes.remove(scope)
    while scopes and scopes[-1]._state == CLOSED:
        scopes.pop()
    if not was_off and not here.stepping and here.runs_compiled:
        take_off()
    if PENDING.batches:
        PENDING.settle()


# The options ``graph="none"`` and ``graph="refuse"``: whether a block may record a graph for
# ``backward()``.
#
# With "none", PyTorch's grad mode is off in the block, as in ``torch.no_grad()``. Inference mode is
# not used: tensors made in it can never be saved for a backward pass or written to afterwards. But
# features, caches and averages that are computed without history are used in training later.
#
# Grad mode belongs to the thread. So each thread remembers the grad mode from before each block.
# Tasks and generators may interleave their blocks: where a block ends before another one that began
# later, it passes its grad mode on to the later block, which puts it back. A scope may also be
# closed on another thread, or inside its block. Grad mode is put back when it is closed on this
# thread, and again when the block is left: a ``torch.no_grad()`` block in between may have put back
# the grad mode that it found.
#
# With "refuse", a function mode checks each call. PyTorch numbers the nodes of graphs as it makes
# them. A call has recorded nothing if the next number is the same as before it, and most calls end
# with this test. The mode does not see the call of a ``torch.autograd.Function`` or of a compiled
# function. It notices their nodes at the next call that is passed one of their results.


@final
class _Quiet:
    """A block with ``graph="none"``, and the grad mode from before it."""

    __slots__ = ("before", "scope")

    def __init__(self, scope: ScopeState, before: bool) -> None:
        self.scope = scope
        self.before = before


@final
class _Recording(threading.local):
    """The blocks of a thread that limit recording. The only instance is `RECORDING`.

    Attributes
    ----------
    quiet : list of _Quiet
        The blocks with ``graph="none"``, in the order in which they were entered.
    ended : WeakKeyDictionary
        For scopes that were closed on this thread, the grad mode from before them.
    refusing : list of ScopeState
        The scopes of the blocks with ``graph="refuse"``.
    seen : int
        The number that the next node had after the last call that the mode saw.
    since : int
        The number of the first node that a refusing block could have made.
    missed : bool
        Whether nodes were made between two calls that the mode saw.
    """

    def __init__(self) -> None:
        self.quiet: list[_Quiet] = []
        self.ended: WeakKeyDictionary[ScopeState, bool] = WeakKeyDictionary()
        self.refusing: list[ScopeState] = []
        self.seen = self.since = 0
        self.missed = False

    def start_anew(self) -> None:
        """Allow all nodes that were recorded until now."""
        self.seen = self.since = _next_node()
        self.missed = False

    def forget(self) -> None:
        """Forget the blocks: they are those of the parent of this process."""
        if self.quiet:
            _set_grad_enabled(self.quiet[0].before)
        self.quiet.clear()
        self.refusing.clear()


def _limit_recording(scope: ScopeState) -> None:
    """Apply the option ``graph`` of a scope to this thread."""
    if scope.graph == "none":
        RECORDING.quiet.append(_Quiet(scope, torch.is_grad_enabled()))
        _set_grad_enabled(False)
    elif scope.graph == "refuse":
        if not RECORDING.refusing:
            RECORDING.start_anew()
        RECORDING.refusing.append(scope)
        if len(RECORDING.refusing) == 1:
            add_mode(thread_state(), REFUSING)


def _limit_no_more(scope: ScopeState) -> None:
    """Undo `_limit_recording`.

    Can be called again where it was interrupted, and when a closed scope is left.
    """
    quiet, refusing = RECORDING.quiet, RECORDING.refusing
    if scope in refusing:
        if len(refusing) == 1:
            remove_mode(thread_state(), REFUSING)
        refusing.remove(scope)
        return
    place = next((place for place in reversed(range(len(quiet))) if quiet[place].scope is scope), None)
    if place is None:
        if scope in RECORDING.ended:
            _set_grad_enabled(RECORDING.ended.pop(scope))
        return
    before = quiet[place].before
    if place + 1 < len(quiet):
        quiet[place + 1].before = before
    else:
        RECORDING.ended[scope] = before
        _set_grad_enabled(before)
    del quiet[place]


def _scopes_from(scope: ScopeState | None) -> Iterator[ScopeState]:
    """Yield a scope, and the open ones around it."""
    while scope is not None:
        yield scope
        scope = scope.outer


@final
class RefusingMode(TorchFunctionMode):
    """Runs each call, and raises where it has recorded a graph: for ``graph="refuse"``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call; raise if it has recorded a graph."""
        before = _next_node()
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        here = RECORDING
        if before == here.seen == _next_node() and not here.missed:
            return result
        refusal = _refusal_of((args, kwargs, result), before)
        if refusal is None:
            return result
        # The traceback keeps this frame, which would keep the graph alive.
        del result, args, kwargs
        try:
            raise refusal
        finally:
            del refusal


def _refusal_of(tree: Any, before: int) -> GraphRetainedError | None:
    """Return the error to raise where a call, or an unseen one before it, has recorded a graph.

    None where that is allowed.

    Parameters
    ----------
    tree : object
        The arguments and the result of the call.
    before : int
        The number that the next node had before the call.
    """
    here = RECORDING
    scope = next((scope for scope in _scopes_from(innermost_scope()) if scope.graph == "refuse"), None)
    if scope is None or transform_running() is not None:
        # The refusing block is that of another task. Or a transform runs: its graphs end with it.
        here.start_anew()
        return None
    here.missed = here.missed or before != here.seen
    here.seen = _next_node()
    since = here.since if here.missed else before
    with _C.DisableTorchFunction():
        for tensor in flattened(tree, _LEVELS):
            if not issubclass(type(tensor), Tensor) or not tensor.requires_grad:
                continue
            node = tensor.grad_fn
            if node is not None and node._sequence_nr() >= since:
                return refuse_recording(scope._called(), tensor, since, missed=since != before)
    return None


REFUSING: Final = RefusingMode()
RECORDING: Final = _Recording()


def _forget_inherited() -> None:
    forget_backward()
    PENDING.forget_threads()
    here = thread_state()
    take_off()
    here.scopes.clear()
    here.modes = ()
    here.watched = False
    here.compiled = None
    here.stepping = 0
    here.pending = []
    RECORDING.forget()


def see_births(kind: Kind) -> None:
    """Watch this thread from now on where a scope is open.

    `entered` and `left` are to be called whenever a scope is entered or left.
    """
    SEAM.kind = kind
    if see_allocations(kind):
        keep_what_hooks_save(TORCH_COMPILED.unborn)
    else:
        MODE.records = True
        keep_what_hooks_save(None)
    at_forks(in_child=_forget_inherited)
    scope = innermost_scope()
    opened: list[ScopeState] = []
    while scope is not None:
        opened.append(scope)
        scope = scope.outer
    for outer in reversed(opened):
        # An earlier installation that was interrupted may have entered some of them.
        if outer not in thread_state().scopes:
            entered(outer)


# Work that runs on another thread by ``contextvars.Context.run`` makes births for the scope of its
# context.
#
# Modes belong to a thread, and nothing is called when C enters a context. Such work comes to a
# thread by ``ThreadPoolExecutor.submit``, which ``asyncio.to_thread`` and ``loop.run_in_executor``
# use, or by ``threading.Thread``. Both are replaced by functions that watch the thread while the
# work runs. Other work is unchanged.


_submit: Final[Callable[..., Future[Any]]] = ThreadPoolExecutor.submit
_run: Final[Callable[[threading.Thread], None]] = threading.Thread.run


def watch_threads() -> None:
    """Watch each thread while it runs work in a context in which a scope is open, from now on."""
    PATCHES.replace(TORCH_THREADS, ThreadPoolExecutor, "submit", lambda _: _submit_watched)
    PATCHES.replace(TORCH_THREADS, threading.Thread, "run", lambda _: _run_watched)


def _context_of(work: Any) -> Context | None:
    """Return the context, where the work is the method ``run`` of one; None otherwise."""
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
    around = [outer for outer in _scopes_from(scope.outer) if outer._limits_recording]
    try:
        for outer in reversed(around):
            _limit_recording(outer)
        entered(scope)
        yield
    finally:
        left(scope)
        for outer in around:
            _limit_no_more(outer)


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
        if PENDING.batches or PENDING.fresh:
            PENDING.settle()
