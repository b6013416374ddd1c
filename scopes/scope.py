"""The scope: a block of code that owns what is born in it.

The sections: what happens when a scope ends, the class `DisposeScope`, the decorator, and `tidy`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from sys import _getframe, modules
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, cast, final, overload

from . import context, identity, kinds
from .context import (
    ANY_GENERATOR,
    CLOSED,
    CURRENT,
    ENTERING,
    OPEN,
    UNOPENED,
    drive_by_hand,
    enter_among_generators,
    resume_scope,
    set_current,
    suspend_scope,
)
from .errors import ScopeClosedError, ScopeNestingError
from .extension import COMPILED
from .identity import (
    DEAD_COMPOSITES,
    LIVE,
    UNSEEN,
    Entry,
    catch_up,
    find_births_of,
    finding_births,
    is_tracked,
    let_go,
    owner_of_entry,
    raise_failures,
    release,
    settle,
    standing_of,
    storages_of,
)
from .kinds import ANCHORED, AWAITED, Kind, install_imported, modules_seen
from .listeners import HOOKS, LISTENERS, finish_releases
from .options import GraphOption, check_graph_option, keep_pages, parse_budget, return_pages
from .out_of_memory import explain
from .ownership import hand_over, made_compact, owned_in, take_over
from .plain_memory import MEMORY, ArenaUse
from .statistics import LOCAL, Ledger
from .tree_walk import add_leaf_types, resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .errors import EscapedError

__all__ = [
    "DisposeScope",
    "again",
    "decorate",
    "dispose_scope",
    "end",
    "install_compiled",
    "leave",
    "raise_what_failed",
    "release_all_but",
    "release_each",
    "tidy",
]

# The ground floor of a scope: what it is made of, and what it tells of itself.


# The end of a scope: it releases what it owns, and gives the plain memory in use to the outer
# scope.
#
# An interrupt (``KeyboardInterrupt``, an exception thrown into a thread, the limit of recursion)
# can come up at any call of Python code, and a scope is left all the same. So that it is:
#
# * the context variable is put back first, by compiled code that calls no Python;
# * what follows is steps that can be taken again, and `again` takes one once more where it was
#   interrupted;
# * what was raised meanwhile is kept until all is done, and raised then: see `identity`.


R = TypeVar("R")


leave: Final[Callable[[DisposeScope, str, BaseException | None], None]] = COMPILED.leave
"""Leave a scope, or close it before its block is over: off the stack, then `end`, then what was raised is raised."""


def again(failures: list[BaseException], step: Callable[..., R], *arguments: Any) -> R | None:
    """Take a step that can be taken again, once more where it was interrupted; what it raised goes to the failures."""
    for _ in range(2):
        try:
            return step(*arguments)
        except BaseException as error:
            failures.append(error)
    return None


def _once(failures: list[BaseException], step: Callable[..., object], *arguments: Any) -> None:
    """Take a step that cannot be taken again."""
    try:
        step(*arguments)
    except BaseException as error:
        failures.append(error)


def end(scope: DisposeScope, failures: list[BaseException], /) -> EscapedError | None:
    """Close a scope, whatever its state was, and do all that is owed then.

    Can be called again after an interrupt.

    Returns
    -------
    EscapedError or None
        What a strict scope has to say about the plain memory that it hands over. What releases
        raise, and the others that are told, goes to the failures.
    """
    if scope._state == OPEN:
        for left in HOOKS.left:
            again(failures, left, scope)
    if scope.keep_pages:
        return_pages(scope)
    scope._state = CLOSED
    scope._direct = False
    scope._frame = None
    scope._passed_over = ()
    if failures:
        # What an interrupt tore out of the list is found by its owner.
        scope._entries.update(dict.fromkeys(entry for entry in list(LIVE.values()) if entry.owner is scope))
    while DEAD_COMPOSITES or scope._entries:
        # A composite of this scope may die by a release: its members are still this scope's to
        # release.
        if DEAD_COMPOSITES:
            settle(scope)
        release_newest(scope._entries, failures)
    if HOOKS.put_off:
        again(failures, finish_releases)
    for listener in LISTENERS:
        _once(failures, listener.closed, scope)
    if scope._account is None:
        return None
    try:
        return MEMORY[0].closed(scope)
    except BaseException as error:
        failures.append(error)
    return MEMORY[0].closed(scope)


def raise_what_failed(
    scope: DisposeScope,
    doing: str,
    failures: list[BaseException],
    escaped: EscapedError | None,
    in_flight: BaseException | None,
    /,
) -> None:
    """Raise what came up while a scope was left, or hang it onto the exception that is on its way."""
    try:
        if escaped is not None:
            if in_flight is not None:
                # Its traceback holds the frames, and they the arrays: no wonder.
                in_flight.add_note(str(escaped))
            elif failures:
                failures.append(escaped)
            else:
                raise escaped
        if failures:
            raise_failures(failures, f"{doing} {scope._called()}", in_flight)
    finally:
        # This frame is reached from the tracebacks of what is raised: kept here, it would be a
        # cycle.
        del escaped, in_flight


release_newest: Final[Callable[[dict[Entry, None], list[BaseException]], None]] = COMPILED.release_newest
"""Release entries, the newest first, until none is left; what releases raise goes to the failures."""


def release_each(entries: list[Entry], failures: list[BaseException]) -> None:
    """Release entries, the last one first, until none is left.

    Can be called again where it was interrupted.
    """
    while entries:
        failure = release(entries[-1])
        entries.pop()
        if failure is not None:
            failures.append(failure)
            failure = None


def release_all_but(scope: DisposeScope, kept: set[Entry]) -> list[BaseException]:
    """Release what is owned now, the newest first; what a release brings into being meanwhile stays."""
    failures: list[BaseException] = []
    pending = [entry for entry in list(scope._entries) if entry not in kept]
    for _ in range(2):
        try:
            while pending:
                # Taking the entry out is the claim, as for a move.
                if scope._entries.pop(pending[-1], 0) is None:
                    release_each([pending[-1]], failures)
                pending.pop()
            break
        except BaseException as error:
            failures.append(error)
            if pending and pending[-1].owner is scope:
                # An interrupt after the claim.
                scope._entries[pending[-1]] = None
    if HOOKS.put_off:
        again(failures, finish_releases)
    return failures


# The verbs of a scope: moving, attaching and disposing what it owns.


T = TypeVar("T")


# The compiled hot paths get to know the Python part: its tables, lists, functions, and the slots of
# its classes.


def install_compiled(scope_type: type[DisposeScope]) -> None:
    """Bind the compiled hot paths, and give the class of scopes its compiled methods."""
    COMPILED.bind(
        {
            "ANCHORED": ANCHORED,
            "AnchoredEntry": identity.AnchoredEntry,
            "AWAITED": kinds.AWAITED,
            "CURRENT": context.CURRENT,
            "DEAD": identity.DEAD,
            "ENTERED": HOOKS.entered,
            "ENTERING": context.ENTERING,
            "DEAD_COMPOSITES": identity.DEAD_COMPOSITES,
            "Entry": identity.Entry,
            "Kind": Kind,
            "LEFT": HOOKS.left,
            "LISTENERS": LISTENERS,
            "LIVE": identity.LIVE,
            "LOCAL": LOCAL,
            "Ledger": Ledger,
            "MEMORY": MEMORY,
            "SHARED": identity.SHARED,
            "ScopeView": scope_type,
            "StrongEntry": identity.StrongEntry,
            "end": end,
            "explain": explain,
            "finish_release": identity.finish_release,
            "leave_the_stack": context.leave_the_stack,
            "modules_seen": kinds.modules_seen,
            "part_died": identity.part_died,
            "raise_what_failed": raise_what_failed,
            "resolve": context.resolve,
            "settle": identity.settle_earlier,
        }
    )
    COMPILED.install_compiled(scope_type)


# A scope around each call of a function, and what the function returns or yields moved to its
# caller.


P = ParamSpec("P")


def decorate(scope: DisposeScope, function: Any) -> Callable[..., Any]:
    """Wrap a function so that each call runs in a fresh scope like `scope`: see `DisposeScope.__call__`."""
    if isinstance(function, type) or not callable(function):
        what = "no function was given" if function is None else f"{function!r} is not one"
        raise TypeError(f"@dispose_scope() decorates functions, coroutine functions and generator functions; {what}")
    if scope._state:
        raise TypeError(f"{scope!r} has been entered; a decorator is made anew: @dispose_scope()")
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(scope, function)
    if inspect.isgeneratorfunction(function):
        return _around_generator(scope, function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with scope._fresh() as fresh:
                return fresh._hand_out(await function(*args, **kwargs))

        return coroutine

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with scope._fresh() as fresh:
            return fresh._hand_out(function(*args, **kwargs))

    return call


def _around_generator(scope: DisposeScope, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        fresh = scope._fresh()
        with fresh:
            try:
                drive_by_hand(fresh)
                resume: Callable[..., Any] = inner.send
                # Popped before it is passed on: an exception that stayed here would be in a cycle
                # with this frame.
                given: list[Any] = [None]
                while True:
                    try:
                        yielded = fresh._hand_out(resume(given.pop()))
                    except StopIteration as stop:
                        return fresh._hand_out(stop.value)
                    top = suspend_scope(fresh)
                    try:
                        sent = yield yielded
                    except GeneratorExit:
                        resume_scope(fresh, top)
                        raise
                    except BaseException as error:
                        resume, given = inner.throw, [error]
                    else:
                        resume, given = inner.send, [sent]
                        del sent
                    del yielded
                    resume_scope(fresh, top)
            finally:
                inner.close()

    return generator


def _around_async_generator(scope: DisposeScope, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        fresh = scope._fresh()
        with fresh:
            try:
                drive_by_hand(fresh)
                resume: Callable[..., Any] = inner.asend
                given: list[Any] = [None]
                while True:
                    try:
                        yielded = fresh._hand_out(await resume(given.pop()))
                    except StopAsyncIteration:
                        return
                    top = suspend_scope(fresh)
                    try:
                        sent = yield yielded
                    except GeneratorExit:
                        resume_scope(fresh, top)
                        raise
                    except BaseException as error:
                        resume, given = inner.athrow, [error]
                    else:
                        resume, given = inner.asend, [sent]
                        del sent
                    del yielded
                    resume_scope(fresh, top)
            finally:
                await inner.aclose()

    return generator


# The scope: a block of code that owns what is born in it.


@final
class DisposeScope:
    """A block of code that owns the tensors born in it, and releases them when it is left.

    ``with dispose_scope() as scope:`` opens one; as a decorator, ``@dispose_scope()``, it opens a
    fresh one for each call and moves what the function returns or yields to the caller's scope.
    What shall outlive the block is moved out by name: ``return scope.move_to_outer(result)``.

    A scope tracks weakly and never extends a lifetime: a temporary dies by reference count as it
    would without it. It is used for one ``with`` only. The current scope follows ``contextvars``,
    so threads and asyncio tasks each have their own.

    Parameters
    ----------
    name : str, optional
        Shown in reprs, messages and reports.
    strict : bool, default False
        Raise `NotOwnedError` where a verb names a resource that this scope does not own, instead of
        leaving it as it is.
    graph : {"keep", "detach", "error"}, default "keep"
        What happens when a tensor that carries an autograd graph leaves this scope: moved to
        another scope or out of every one, or given out by a decorated function. It keeps its graph
        (``statistics().graphs_kept`` counts them); it is detached, in place, with the same values
        and storage and no history; or the verb raises `GraphRetainedError` and changes nothing.
    keep_pages : bool, default False
        While the scope is open, let the process reuse the pages of large CPU blocks instead of
        returning them to the system at each free; what is free is returned when the last such scope
        is closed. A setting of the GNU C library for the whole process; elsewhere it does nothing
        and warns.
    arena : bool, default True
        Serve the memory of plain arrays that are born in the block from the arena: recycled,
        aligned to 64 bytes, and counted. With False NumPy's own allocator serves the block.
    budget : int or str, optional
        The bytes that what is born in the scope, and in scopes inside it, may have in use at once:
        a number, or a string such as ``"512MiB"``. The allocation that would exceed it raises
        `MemoryError`, which gets notes before it leaves the scope. Where scopes with budgets are
        nested, the tightest wins.

    Raises
    ------
    ValueError
        `graph` is none of the three, or `budget` is not a positive amount, or given with
        ``arena=False``.

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

    __slots__ = (
        "__weakref__",
        "_account",
        "_arena",
        "_below",
        "_direct",
        "_entries",
        "_frame",
        "_outer",
        "_particular",
        "_passed_over",
        "_served",
        "_state",
        "budget",
        "graph",
        "keep_pages",
        "name",
        "strict",
    )

    name: str | None
    strict: bool
    graph: GraphOption
    keep_pages: bool
    budget: int | None
    # Whether the arena serves the block, and whether anything is unusual about that: it does not,
    # or there is a budget.
    _arena: bool
    _particular: bool
    # What the arena knows of this scope, once it has served it; what it puts back when the block is
    # left.
    _account: object | None
    _served: object | None
    # The scope's owned entries, in the order in which they came; a dict, because it is an ordered
    # set.
    _entries: dict[Entry, None]
    # The scope that this one was opened under, as the user sees it; and what lay in the context
    # variable, which can differ.
    _outer: DisposeScope | None
    _below: DisposeScope | None
    # Open, and nothing about generators to think of: the test on the hot path of every birth.
    _direct: bool
    _state: int
    # The frame of the generator whose block this is, as long as the scope is open.
    _frame: FrameType | None
    _passed_over: tuple[DisposeScope, ...]

    @property
    def closed(self) -> bool:
        """Whether the scope has been closed; False also before it is entered."""
        return self._state == CLOSED

    @property
    def outer(self) -> DisposeScope | None:
        """The scope that was current when this one was opened; once that is closed, the next one out that is open."""
        if not self._state:
            return None
        outer = self._outer
        while outer is not None and outer._state == CLOSED:
            outer = outer._outer
        return outer

    @property
    def live(self) -> tuple[Any, ...]:
        """A snapshot of the resources that this scope owns, oldest first; a composite stands for its members.

        The snapshot holds them: they live at least as long as it does.
        """
        self._check_open("live")
        if DEAD_COMPOSITES or UNSEEN:
            catch_up(self)
        resources = (entry() for entry in list(self._entries))
        return tuple(resource for resource in resources if resource is not None)

    @property
    def nbytes(self) -> int:
        """The bytes of the storages behind what this scope owns, plain arrays included, each storage counted once."""
        self._check_open("nbytes")
        return self._nbytes()

    def _nbytes(self) -> int:
        if DEAD_COMPOSITES or UNSEEN:
            catch_up(self)
        found: dict[Hashable, int] = {}
        for entry in list(self._entries):
            storages_of(entry, found)
        total = sum(found.values())
        if self._account is not None:
            total += MEMORY[0].nbytes(self)
        return total

    @property
    def arena(self) -> ArenaUse | None:
        """What the arena serves for this scope; None where NumPy's own allocator serves it."""
        return MEMORY[0].use(self) if MEMORY and self._arena else None

    def __len__(self) -> int:
        if DEAD_COMPOSITES or UNSEEN:
            catch_up(self)
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, resource: object) -> bool:
        if DEAD_COMPOSITES:
            settle()
        if type(resource) in UNSEEN:
            find_births_of((resource,), self)
        entry = standing_of(resource)
        if entry is None:
            return self._account is not None and MEMORY[0].owner(resource) is self
        return owner_of_entry(entry) is self

    def __repr__(self) -> str:
        state = ("unopened", "open", "closed")[self._state]
        named = "" if self.name is None else f" {self.name!r}"
        owned = "" if self._state != OPEN else f", owns {len(self)}, {self._nbytes()} bytes"
        graph = "" if self.graph == "keep" else f", graph={self.graph!r}"
        return f"<DisposeScope{named} {state}{graph}{owned}>"

    def __reduce__(self) -> Any:
        raise TypeError("a scope belongs to a block of code in its own process and cannot be pickled or copied")

    def _called(self) -> str:
        return "a scope" if self.name is None else f"scope {self.name!r}"

    def _check_open(self, verb: str) -> None:
        if self._state == CLOSED:
            raise ScopeClosedError(f"{verb}: {self._called()} is closed and owns nothing any more", scope=repr(self))
        if self._state == UNOPENED:
            raise ScopeNestingError(
                f"{verb}: {self._called()} has not been entered; open it with a with statement first", scope=repr(self)
            )

    def _take(self, entry: Entry) -> None:
        self._entries[entry] = None
        if self._state == CLOSED and self._entries.pop(entry, 0) is None:
            # Closed by another thread a moment ago: the entry goes where the next birth would.
            if entry.owner is not self:
                return
            entry.owner = outer = self.outer
            if outer is None:
                LOCAL.ledger.detached += 1
                let_go(entry)
            else:
                outer._take(entry)
        elif LIVE.get(entry.key) is not entry:
            # Released by another thread while it was nobody's.
            self._entries.pop(entry, None)

    def move_to_outer(self, tree: T, *, compact: bool = False) -> T:
        """Give what this scope owns in a tree to the outer scope; with no outer scope it becomes unowned.

        Parameters
        ----------
        tree : T
            A resource, or any nesting of containers: list, tuple, namedtuple, dict and other
            mappings, set, frozenset, deque, dataclass, attrs class, array of objects. What this
            scope does not own is left as it is (in a strict scope: `NotOwnedError`); a member
            stands for its composite.
        compact : bool, default False
            Give views memory of their own, so that the big storage behind a small view can go with
            this scope: the same tensors, with the same values, and a copy behind them. A plain
            array is given as it is, outside of any container, and a copy of it is returned.

        Returns
        -------
        T
            `tree` itself; for a plain array that was to be made compact, its copy.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        UnknownKindError
            An object of unknown type in the tree hides a resource that this scope owns. Nothing has
            moved.
        TypeError
            A plain array to be made compact is inside of a container. Nothing has moved.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.dispose_scope("read") as scope:
        ...     content = ds.zeros(1_000_000)
        ...     header = scope.move_to_outer(content[:10], compact=True)
        >>> [record.nbytes for record in ds.live_tensors() if record.shape == (10,)]
        [80]
        """
        self._check_open("move_to_outer")
        plain: list[object] = []
        entries = owned_in(self, tree, "move_to_outer", plain)
        if compact:
            tree = cast("T", made_compact(self, tree, entries, plain))
        hand_over(self, entries, self.outer, plain)
        return tree

    def move_to(self, other: DisposeScope, tree: T) -> T:
        """Give what this scope owns in a tree to another open scope; otherwise as `move_to_outer`.

        Raises
        ------
        ScopeClosedError
            `other` or this scope is closed. Nothing has moved.
        TypeError
            `other` is no scope.
        """
        self._check_open("move_to")
        if not isinstance(other, DisposeScope):  # pyright: ignore[reportUnnecessaryIsInstance] (as above)
            raise TypeError(f"move_to: the first argument must be a DisposeScope, not a {type(other).__qualname__}")
        other._check_open("move_to")
        plain: list[object] = []
        entries = owned_in(self, tree, "move_to", plain)
        if other is not self:
            hand_over(self, entries, other, plain)
        return tree

    def detach(self, tree: T) -> T:
        """Give up what this scope owns in a tree: it becomes unowned and lives by reference count.

        Returns `tree`.

        Otherwise as `move_to_outer`.
        """
        self._check_open("detach")
        plain: list[object] = []
        hand_over(self, owned_in(self, tree, "detach", plain), None, plain)
        return tree

    def attach(self, tree: T) -> T:
        """Take over the resources in a tree, whoever owned them before; this scope will dispose them. Returns `tree`.

        Objects of the user's own with a method ``dispose()`` get known to the library here. One
        that cannot be weakly referenced is held until it is disposed or detached.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        DisposedError
            A resource in the tree has been disposed.
        DeviceMismatchError
            The members of a composite live on different devices.
        UnknownKindError
            An object of unknown type hides a resource. Nothing has been attached, in this case as
            in the others.
        """
        self._check_open("attach")
        plain: list[object] = []
        take_over(self, resources_in(tree, finding_births(is_tracked), "the tree given to attach()", plain))
        for array in plain:
            MEMORY[0].move(array, MEMORY[0].owner(array), self)
        return tree

    def dispose_everything(self) -> None:
        """Release all that this scope owns now; the scope stays open.

        Raises
        ------
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything")
        if DEAD_COMPOSITES or UNSEEN:
            catch_up()
        failures = release_all_but(self, set())
        if failures:
            raise_failures(failures, f"dispose_everything() of {self._called()}", None)

    def dispose_everything_but(self, tree: T) -> T:
        """Release all that this scope owns, except what is in the tree. Returns `tree`.

        What is in the tree and not owned by this scope is left as it is, and so is ``None``.

        Raises
        ------
        UnknownKindError
            An object of unknown type in the tree hides a resource of this scope. Nothing has been
            released.
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything_but")
        if DEAD_COMPOSITES or UNSEEN:
            catch_up()
        kept = set(owned_in(self, tree, "dispose_everything_but", [], check_strict=False))
        failures = release_all_but(self, kept)
        if failures:
            raise_failures(failures, f"dispose_everything_but() of {self._called()}", None)
        return tree

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

    if TYPE_CHECKING:
        # Compiled: see `install_compiled`.
        def __enter__(self) -> Self: ...
        def __exit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
        ) -> Literal[False]: ...

    def _enter(self) -> Self:
        """Enter the scope, whatever is unusual about that: what the compiled `__enter__` calls where anything is."""
        if self._state:
            self._refuse_to_enter()
        if AWAITED and len(modules) != modules_seen[0]:
            install_imported()
        below = CURRENT.get()
        code = _getframe(1).f_code
        if (below is None or below._direct) and not code.co_flags & ANY_GENERATOR and code.co_name not in ENTERING:
            self._below = self._outer = below
            self._direct = True
        else:
            enter_among_generators(self, below, _getframe(1))
        try:
            self._state = OPEN
            if self.keep_pages:
                keep_pages(self)
            set_current(self)
            if MEMORY and (below is None or not below._arena or not self._direct or self._particular):
                MEMORY[0].entered(self)
            for entered in HOOKS.entered:
                entered(self)
            for listener in LISTENERS:
                listener.opened(self)
            return self
        except BaseException as error:
            # No with statement leaves what could not be entered.
            if self._state:
                self.__exit__(type(error), error, error.__traceback__)
            raise

    def close(self) -> None:
        """Release all that this scope owns, and own nothing any more.

        Idempotent, from any thread or task.

        The block goes on; what is born in it from now on belongs to the outer scope. A scope that
        was never entered can be closed too, and cannot be entered then.

        Raises
        ------
        ExceptionGroup
            Releases failed. All others were done, and the scope is closed. An interrupt, such as
            `KeyboardInterrupt`, is raised as itself.
        """
        if self._state != CLOSED:
            leave(self, "closing", None)

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: None = None, /) -> Any: ...

    def __call__(self, function: Any = None, /) -> Any:
        """Decorate a function, coroutine function, generator function or async generator function.

        Each call opens a fresh scope with the name and options of this one. What the function
        returns or yields is moved to the scope of the caller by itself; what it did not make stays
        where it is.

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
        entries = owned_in(
            self,
            result,
            "move_to_outer",
            plain,
            what="what a decorated function returned or yielded",
            check_strict=False,
        )
        hand_over(self, entries, self.outer, plain)
        return result

    def _set_budget(self, budget: int | str) -> None:
        self.budget = parse_budget(budget)
        self._particular = True
        if not self._arena:
            raise ValueError("a budget is kept by the arena: give no budget, or leave out arena=False")

    def _refuse_to_enter(self) -> None:
        state = "is closed" if self._state == CLOSED else "is still open"
        raise ScopeNestingError(
            f"{self._called()} cannot be entered again, it {state}: a scope is used for one with statement; "
            "write dispose_scope() in each",
            scope=repr(self),
        )


install_compiled(DisposeScope)

# What refers to a scope does not hide what the scope owns.
add_leaf_types(DisposeScope)

# One call in a scope of its own.


def tidy(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a scope of its own, and move what it returns to the caller's scope.

    Everything else born in the call is disposed. A coroutine function gives a coroutine to await, a
    generator function a generator, as with ``@dispose_scope()``.

    Returns
    -------
    R
        What `function` returned.

    Raises
    ------
    TypeError
        `function` cannot be called.

    Examples
    --------
    >>> import disposescope as ds
    >>> float(ds.tidy(lambda n: (ds.arange(n) * 2.0).sum(), 4))
    12.0
    """
    result: R = DisposeScope()(function)(*args, **kwargs)
    return result


dispose_scope = DisposeScope
