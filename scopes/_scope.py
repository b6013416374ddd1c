"""The scope: a block of code that owns what is born in it."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe, modules
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, final, overload
from warnings import warn

from ._arrivals import AWAITED, look_for_arrivals, modules_seen
from ._binding import quicken
from ._budget import parse_budget
from ._closing import hand_over_memory, shut
from ._current import (
    ANY_GENERATOR,
    CLOSED,
    CURRENT,
    ENTERING,
    OPEN,
    UNOPENED,
    set_current,
)
from ._decorator import decorate
from ._errors import ScopeNestingError
from ._estates import ESTATES
from ._failures import raise_failures
from ._graphs import GraphOption, check_graph_option
from ._instruments import ENTERED, LEFT, LISTENERS
from ._memory import EXPLAINERS, MEMORY
from ._ownership import hand_over, owned_in
from ._pages import keep_pages
from ._scope_verbs import ScopeVerbs
from ._stack import enter_among_generators, leave_the_stack
from ._trees import LEAF_TYPES

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["DisposeScope"]


@final
class DisposeScope(ScopeVerbs):
    """A block of code that owns the tensors born in it, and releases them when it is left.

    ``with dispose_scope() as scope:`` opens one; as a decorator, ``@dispose_scope()``, it opens a fresh one for each
    call and moves what the function returns or yields to the caller's scope. What shall outlive the block is moved
    out by name:
    ``return scope.move_to_outer(result)``.

    A scope tracks weakly and never extends a lifetime: a temporary dies by reference count as it would without it. It
    is used for one ``with`` only. The current scope follows ``contextvars``, so threads and asyncio tasks each have
    their own.

    Parameters
    ----------
    name : str, optional
        Shown in reprs, messages and reports.
    strict : bool, default False
        Raise `NotOwnedError` where a verb names a resource that this scope does not own, instead of leaving it as it
        is.
    graph : {"keep", "detach", "error"}, default "keep"
        What happens when a tensor that carries an autograd graph leaves this scope: moved to another scope or out of
        every one, or given out by a decorated function. It keeps its graph (``statistics().graphs_kept`` counts
        them); it is detached, in place, with the same values and storage and no history; or the verb raises
        `GraphRetainedError` and changes nothing.
    keep_pages : bool, default False
        While the scope is open, let the process reuse the pages of large CPU blocks instead of returning them to the
        system at each free; what is free is returned when the last such scope is closed. A setting of the GNU C
        library for the whole process; elsewhere it does nothing and warns.
    arena : bool, default True
        Serve the memory of plain arrays that are born in the block from the arena: recycled, aligned to 64 bytes,
        and counted. With False NumPy's own allocator serves the block.
    budget : int or str, optional
        The bytes that what is born in the scope, and in scopes inside it, may have in use at once: a number, or a
        string such as ``"512MiB"``. The allocation that would exceed it raises `MemoryError`, which gets notes
        before it leaves the scope. Where scopes with budgets are nested, the tightest wins.

    Raises
    ------
    ValueError
        `graph` is none of the three, or `budget` is not a positive amount, or given with ``arena=False``.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.dispose_scope("outer") as outer:
    ...     with ds.dispose_scope("step") as step:
    ...         squares = ds.arange(4) ** 2
    ...         total = step.move_to_outer(squares.sum())
    ...     int(total), ds.is_disposed(squares), total in outer
    (14, True, True)
    """

    __slots__ = ()

    def __init__(
        self,
        name: str | None = None,
        *,
        strict: bool = False,
        graph: GraphOption = "keep",
        keep_pages: bool = False,
        arena: bool = True,
        budget: int | str | None = None,
    ) -> None:
        if name is not None and type(name) is not str:
            if callable(name):
                raise TypeError("dispose_scope is called before it decorates: write @dispose_scope() with parentheses")
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                raise TypeError(f"dispose_scope: name must be a str, not {name!r}")
        if graph != "keep":
            check_graph_option(graph)
        self.name = name
        self.strict = strict
        self.graph = graph
        self.keep_pages = keep_pages
        self.budget = None
        self._arena = arena
        self._particular = not arena
        self._account = self._served = None
        if budget is not None:
            self._set_budget(budget)
        self._entries = {}
        self._state = UNOPENED
        self._direct = False
        self._frame = None
        self._passed_over = ()

    def __enter__(self) -> Self:
        if self._state:
            self._refuse_to_enter()
        if AWAITED and len(modules) != modules_seen[0]:
            look_for_arrivals()
        below = CURRENT.get()
        code = _getframe(1).f_code
        if (below is None or below._direct) and not code.co_flags & ANY_GENERATOR and code.co_name not in ENTERING:
            self._below = self._outer = below
            self._direct = True
        else:
            enter_among_generators(self, below, _getframe(1))
        if self.keep_pages:
            keep_pages()
        self._state = OPEN
        set_current(self)
        if MEMORY and (below is None or not below._arena or not self._direct or self._particular):
            MEMORY[0].entered(self)
        if ENTERED:
            for entered in ENTERED:
                entered(self)
        if LISTENERS:
            for listener in LISTENERS:
                listener.opened(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        if CURRENT.get() is self:
            set_current(self._below)
            # The outermost scope found the arena in service where a task inherited it from a scope that is closed.
            if self._served is not None or (self._below is None and self._arena and MEMORY):
                MEMORY[0].left(self)
        else:
            leave_the_stack(self)
            if self._served is not None and CURRENT.get() is None:
                MEMORY[0].left(self)
        if exc is not None and MEMORY and isinstance(exc, MemoryError):
            MEMORY[0].explain(exc)
        if exc is not None:
            for explain in EXPLAINERS:
                explain(exc)
        if self._state == CLOSED:
            return False
        if LEFT:
            for left in LEFT:
                left(self)
        if (
            self._direct
            and not self._entries
            and self._account is None
            and not ESTATES
            and not LISTENERS
            and not self.keep_pages
        ):
            # The hot path: nothing to release and nobody to tell.
            self._state = CLOSED
            self._direct = False
            if not self._entries:
                return False
        try:
            self._end(exc)
        finally:
            # This frame is reached from the failures' tracebacks, and they from the exception in flight.
            del exc, traceback
        return False

    def _end(self, exc: BaseException | None) -> None:
        """Release what the block leaves behind, and hand its plain memory over."""
        failures = shut(self)
        if self._account is not None:
            hand_over_memory(self, failures, exc)
        if failures:
            try:
                raise_failures(failures, f"leaving {self._called()}", exc)
            finally:
                del exc

    def close(self) -> None:
        """Release all that this scope owns, and own nothing any more. Idempotent, from any thread or task.

        The block goes on; what is born in it from now on belongs to the outer scope. A scope that was never entered
        can be closed too, and cannot be entered then.

        Raises
        ------
        ExceptionGroup
            Releases failed. All others were done, and the scope is closed.
        """
        if self._state == CLOSED:
            return
        if CURRENT.get() is self:
            set_current(self._below)
            if self._served is not None:
                MEMORY[0].left(self)
        if LEFT and self._state:
            for left in LEFT:
                left(self)
        failures = shut(self)
        if self._account is not None:
            hand_over_memory(self, failures, None)
        if failures:
            raise_failures(failures, f"closing {self._called()}", None)

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: None = None, /) -> Any: ...

    def __call__(self, function: Any = None, /) -> Any:
        """Decorate a function, coroutine function, generator function or async generator function.

        Each call opens a fresh scope with the name and options of this one. What the function returns or yields is
        moved to the scope of the caller by itself; what it did not make stays where it is.

        Raises
        ------
        TypeError
            What is decorated is not a function.
        """
        return decorate(self, function)

    def _fresh(self) -> DisposeScope:
        return DisposeScope(
            self.name,
            strict=self.strict,
            graph=self.graph,
            keep_pages=self.keep_pages,
            arena=self._arena,
            budget=self.budget,
        )

    def _hand_out(self, result: T) -> T:
        """Move what a decorated function gives out to its caller's scope; inputs stay in place, also if strict."""
        plain: list[object] = []
        hand_over(self, owned_in(self, result, "the return", plain, check_strict=False), self.outer, plain)
        return result

    def _set_budget(self, budget: int | str) -> None:
        self.budget = parse_budget(budget)
        self._particular = True
        if not self._arena:
            raise ValueError("a budget is kept by the arena: give no budget, or leave out arena=False")
        if not MEMORY:
            warn(
                "budget has no effect here: there is no arena to keep it, as arena_statistics().available tells",
                RuntimeWarning,
                stacklevel=3,
            )

    def _refuse_to_enter(self) -> None:
        state = "is closed" if self._state == CLOSED else "is still open"
        raise ScopeNestingError(
            f"{self._called()} cannot be entered again, it {state}: a scope is used for one with statement; "
            "write dispose_scope() in each",
            scope=repr(self),
        )


quicken(DisposeScope)

# What refers to a scope does not hide what the scope owns.
LEAF_TYPES.add(DisposeScope)
