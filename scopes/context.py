"""Which scope is current: the context variable, generators that are suspended, and the stack of open scopes."""

from __future__ import annotations

import dis
from collections.abc import Callable
from contextvars import ContextVar
from sys import _getframe
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from .errors import ScopeNestingError
from .extension import COMPILED
from .forks import at_forks
from .plain_memory import MEMORY

if TYPE_CHECKING:
    from .scope import DisposeScope

__all__ = [
    "ANY_GENERATOR",
    "CLOSED",
    "CURRENT",
    "ENTERING",
    "OPEN",
    "UNOPENED",
    "current_scope",
    "drive_by_hand",
    "enter_among_generators",
    "generator_frame",
    "leave_the_stack",
    "resolve",
    "resume_scope",
    "set_current",
    "suspend_scope",
    "suspended",
]

# Which scope is current: a context variable, read so that a suspended generator's scope is passed
# over.
#
# A generator runs in its caller's context, so the scope that it opens stays in the context variable
# while it is suspended, and would capture what its consumer creates. A scope that was opened by a
# generator therefore remembers that generator's frame, and counts as current only while the frame
# is running (or awaits something: the tasks it waits for inherit its scope).


CURRENT: Final[ContextVar[DisposeScope | None]] = ContextVar("disposescope.current", default=None)
"""The innermost entered scope of the context, perhaps closed or suspended since: see `current_scope`. Changed by
`set_current` alone: the arena remembers it.
"""

UNOPENED: Final = 0
OPEN: Final = 1
CLOSED: Final = 2
"""The states of a scope."""

_CO_GENERATOR: Final = 0x20
_CO_ITERABLE_COROUTINE: Final = 0x100  # types.coroutine: its yield is an await
_CO_ASYNC_GENERATOR: Final = 0x200
ANY_GENERATOR: Final = _CO_GENERATOR | _CO_ASYNC_GENERATOR
_RESUME: Final = dis.opmap["RESUME"]
_AFTER_AWAIT: Final = 3
# Frames between a generator's block and the scope: context managers that enter another one, and the
# iterator of a loop that opens a scope for the loop's body.
ENTERING: Final = frozenset({"__enter__", "__aenter__", "__next__", "enter_context", "enter_async_context"})
# Generators that are a context manager, a fixture or a hook's wrapper: what runs while they are
# suspended is their own block, not a consumer.
_BLOCK_DRIVERS: Final = frozenset(
    {
        ("contextlib", "__enter__"),
        ("contextlib", "__aenter__"),
        ("_pytest.fixtures", "call_fixture_func"),
        # The wrapper of a hook of pytest is around what the hook runs. pluggy renamed the module in
        # version 1.7.
        ("pluggy._callers", "_multicall"),
        ("pluggy._callers", "run_old_style_hookwrapper"),
        ("pluggy._execution", "_multicall"),
        ("pluggy._execution", "run_old_style_hookwrapper"),
    }
)


set_current: Final[Callable[[DisposeScope | None], object]] = COMPILED.set_current
"""Change the innermost entered scope of this context."""


def current_scope() -> DisposeScope | None:
    """The innermost open scope of this context, or None.

    Each thread and each asyncio task has its own; a task inherits its creator's. A scope that was
    opened by a generator is current only while that generator runs.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.current_scope() is None
    True
    >>> with ds.dispose_scope() as scope:
    ...     ds.current_scope() is scope
    True
    """
    scope = CURRENT.get()
    if scope is None or scope._direct:
        return scope
    return resolve(scope)


def resolve(top: DisposeScope) -> DisposeScope | None:
    """The current scope, where the innermost entered one is closed, suspended, or was opened over a suspended one."""
    node: DisposeScope | None = top
    while node is not None:
        if node._state == OPEN and (node._frame is None or not suspended(node._frame)):
            if node._passed_over:
                return _innermost_running(node)
            return node
        node = node._below
    return None


def passed_over(top: DisposeScope | None, chosen: DisposeScope | None) -> tuple[DisposeScope, ...]:
    """The open scopes that are suspended now, innermost first: they may be resumed inside the one being opened."""
    skipped: dict[DisposeScope, None] = {}
    node = top
    while node is not None:
        for scope in (*(() if node is chosen else (node,)), *node._passed_over):
            if scope._state == OPEN and scope._frame is not None and suspended(scope._frame):
                skipped[scope] = None
        if node is chosen:
            break
        node = node._below
    return tuple(skipped)


def _innermost_running(node: DisposeScope) -> DisposeScope:
    """Of a scope and those that were suspended when it was opened, the one whose code is running innermost."""
    running = {
        scope._frame: scope
        for scope in reversed(node._passed_over)
        if scope._state == OPEN and scope._frame is not None and not suspended(scope._frame)
    }
    if not running:
        return node
    if node._frame is not None:
        running[node._frame] = node
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        scope = running.get(frame)
        if scope is not None:
            return scope
        frame = frame.f_back
    return node


def generator_frame(frame: FrameType) -> FrameType | None:
    """The frame of the generator whose block enters a scope, given the frame that enters it; None for another block.

    A generator made by ``contextlib.contextmanager``, a pytest fixture and the wrapper of a pytest
    hook are None too: while they are suspended, the block that they manage runs.
    """
    found: FrameType | None = frame
    while found is not None and not found.f_code.co_flags & ANY_GENERATOR:
        if found.f_code.co_name not in ENTERING:
            return None
        found = found.f_back
    if found is None:
        return None
    driver = found.f_back
    if driver is not None and (driver.f_globals.get("__name__"), driver.f_code.co_name) in _BLOCK_DRIVERS:
        return generator_frame(driver.f_back) if driver.f_back is not None else None
    return found


def suspended(frame: FrameType) -> bool:
    """Whether a generator's frame is suspended at a ``yield``, so that its consumer runs; False while it awaits."""
    if frame.f_back is not None:
        return False
    flags = frame.f_code.co_flags
    if flags & _CO_ITERABLE_COROUTINE:
        return False
    if not flags & _CO_ASYNC_GENERATOR:
        return True
    return not _awaits(frame.f_code, frame.f_lasti)


def _awaits(code: CodeType, last: int) -> bool:
    # The instruction after the one that suspended the frame is RESUME, whose argument tells a yield
    # (1) from an await (3): https://docs.python.org/3.11/library/dis.html#opcode-RESUME
    bytecode = code.co_code
    for at in (last + 2, last):
        if 0 <= at < len(bytecode) and bytecode[at] == _RESUME:
            return bytecode[at + 1] & _AFTER_AWAIT == _AFTER_AWAIT
    return False


def _forget_inherited() -> None:
    set_current(None)


# A forked child is another program: the blocks of its parent are not on its way out.
at_forks(in_child=_forget_inherited)

# The stack of scopes in the context variable: the ways in and out that are not straight.


def enter_among_generators(scope: DisposeScope, below: DisposeScope | None, frame: FrameType) -> None:
    """The slow way in: the block that is entered, or one around it, is a generator's."""
    while below is not None and below._state == CLOSED:
        # Closed in another context, and not on any way out of here: it need not be kept. What it
        # had to put back in this context is put back on the way out of this scope.
        if below._served is not None:
            scope._served = below._served
        below = below._below
    scope._below = scope._outer = below
    if below is not None:
        # Scopes opened and closed crosswise, as by two loops in a zip, would hold one another in an
        # ever longer chain.
        below._outer = below.outer
    if below is not None and not below._direct:
        scope._outer = resolve(below)
        scope._passed_over = passed_over(below, scope._outer)
    scope._frame = generator_frame(frame)
    scope._direct = scope._frame is None and not scope._passed_over


def leave_the_stack(scope: DisposeScope) -> None:
    """Misnested, left in another context, or never entered: take a scope out from under those over it."""
    if not scope._state:
        raise ScopeNestingError(f"{scope!r} was left without having been entered", scope=repr(scope))
    node = CURRENT.get()
    while node is not None:
        if node._below is scope:
            if scope._served is not None and node._served is None:
                node._served, scope._served = scope._served, None
            node._below = scope._below
            return
        node = node._below
    if scope._served is not None and CURRENT.get() is None:
        MEMORY[0].left(scope)


def suspend_scope(scope: DisposeScope) -> DisposeScope | None:
    """Take a scope, and what was entered over it, off the context variable; returns what `resume_scope` wants."""
    top = CURRENT.get()
    node = top
    while node is not None and node is not scope:
        node = node._below
    if node is None:
        return None
    # In this order: where an interrupt comes between, the scope is still to be left, which does
    # both.
    if scope._served is not None:
        MEMORY[0].left(scope)
    set_current(scope._below)
    return top


def resume_scope(scope: DisposeScope, top: DisposeScope | None) -> None:
    """Put a scope, and what was entered over it when it was suspended, over the current scope."""
    if scope._state == CLOSED:
        return
    below = CURRENT.get()
    scope._below = below
    scope._outer = current_scope()
    set_current(scope if top is None else top)
    if MEMORY:
        MEMORY[0].entered(scope)


def drive_by_hand(scope: DisposeScope) -> None:
    """Whoever entered a scope in a generator takes it off the stack while the generator is suspended."""
    scope._frame = None
    scope._direct = not scope._passed_over
