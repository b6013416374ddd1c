"""The stack of scopes in the context variable: the ways in and out that are not straight."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from ._current import CLOSED, CURRENT, current_scope, generator_frame, passed_over, resolve, set_current
from ._errors import ScopeNestingError
from ._memory import MEMORY

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["drive_by_hand", "enter_among_generators", "leave_the_stack", "resume_scope", "suspend_scope"]


def enter_among_generators(scope: DisposeScope, below: DisposeScope | None, frame: FrameType) -> None:
    """The slow way in: the block that is entered, or one around it, is a generator's."""
    while below is not None and below._state == CLOSED:
        # Closed in another context, and not on any way out of here: it need not be kept. What it had to put back
        # in this context is put back on the way out of this scope.
        if below._served is not None:
            scope._served = below._served
        below = below._below
    scope._below = scope._outer = below
    if below is not None:
        # Scopes opened and closed crosswise, as by two loops in a zip, would hold one another in an ever longer
        # chain.
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
            node._below = scope._below
            if scope._served is not None and node._served is None:
                node._served, scope._served = scope._served, None
            return
        node = node._below


def suspend_scope(scope: DisposeScope) -> DisposeScope | None:
    """Take a scope, and what was entered over it, off the context variable; returns what `resume_scope` wants."""
    top = CURRENT.get()
    node = top
    while node is not None and node is not scope:
        node = node._below
    if node is None:
        return None
    set_current(scope._below)
    if scope._served is not None:
        MEMORY[0].left(scope)
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
