"""The scope: a block of code that owns what is born in it.

The sections: what happens when a scope ends, the decorator, the class `DisposeScope`, and `tidy`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from sys import _getframe
from types import CodeType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, final, overload

from .base.errors import ScopeClosedError, ScopeNestingError
from .base.options import check_escapes_option, check_graph_option
from .base.process import install_imported, keep_pages, parse_budget, return_pages
from .base.sites import mark_of
from .compiled import (
    CURRENT,
    DEAD_COMPOSITES,
    LIVE,
    Entry,
    ScopeState,
    again,
    change_owner,
    count_open_birth,
    modules_were_imported,
    release,
    release_newest,
    thread_ledger,
)
from .context import (
    CLOSED,
    HOOKS,
    OPEN,
    UNOPENED,
    ArenaUse,
    await_unlimited,
    enter_among_generators,
    finish_releases,
    forget_ended_generators,
    resolve,
    resume_scope,
    suspend_by_hand,
    suspend_scope,
)
from .identity import (
    catch_up,
    explain,
    find_births_of,
    finding_births,
    is_owned,
    is_tracked,
    let_go,
    owner_of_entry,
    owning_entry_of,
    raise_failures,
    settle,
    storages_of,
)
from .keeping import (
    EscapedResources,
    escaped_of,
    forget_block,
    keep_all,
    note_block,
    settle_survivors,
)
from .kinds import KINDS, finder_of
from .ownership import hand_over, made_compact, owned_in, take_over
from .tree_walk import CLASSES, refuse_without_resources, resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .base.errors import EscapedError
    from .base.options import EscapesOption, GraphOption
    from .compiled import Origin

__all__ = [
    "DisposeScope",
    "dispose_scope",
    "release_each",
    "tidy",
]


# The end of a scope: it releases what it owns, and gives the plain memory in use to the outer
# scope.
#
# An interrupt (``KeyboardInterrupt``, an exception thrown into a thread, the limit of recursion)
# can come up at any call of Python code, and a scope must be left all the same. Therefore:
#
# * compiled code that calls no Python puts the context variable back first;
# * all further steps can be repeated, and `again` repeats a step that was interrupted;
# * exceptions are collected, and raised when all is done: see `identity`.


R = TypeVar("R")


def _once(failures: list[BaseException], step: Callable[..., object], *arguments: Any) -> None:
    """Call a function that cannot be repeated; add what it raises to the failures."""
    try:
        step(*arguments)
    except BaseException as error:
        failures.append(error)


def end(scope: DisposeScope, failures: list[BaseException], in_flight: BaseException | None, /) -> EscapedError | None:
    """Release what a closed scope owns. Can be called again after an interrupt.

    Parameters
    ----------
    scope : DisposeScope
        The scope; it is off the stack, and its state is closed.
    failures : list of BaseException
        Gets what releases and listeners raise.
    in_flight : BaseException or None
        The exception that passes through the block.

    Returns
    -------
    EscapedError or None
        The error of a strict scope about the plain memory that it hands over, or that of a scope
        with ``escapes="raise"`` about what was held.
    """
    try:
        if scope.keep_pages:
            return_pages(scope)
        if failures:
            # An interrupt may have lost an entry that was taken out of `_entries` already. It is
            # found by its owner.
            scope._entries.update(dict.fromkeys(entry for entry in list(LIVE.values()) if entry.owner is scope))
        refusal: EscapedError | None = None
        if scope._entries and (CLASSES.any_keeps or scope.escapes != "dispose"):
            before = len(failures)
            refusal = again(failures, settle_survivors, scope, in_flight)
            # Two failures: it was interrupted both times.
            if len(failures) == before + 2 and scope.escapes == "keep":
                again(failures, keep_all, scope)
    finally:
        # Its traceback refers to this frame: the reference would make a cycle.
        del in_flight
    if scope._variables is not None or scope.escapes == "raise":
        again(failures, forget_block, scope)
    while DEAD_COMPOSITES or scope._entries:
        # A release may end a composite of this scope, which releases the members then.
        if DEAD_COMPOSITES:
            settle(scope)
        release_newest(scope._entries, failures)
    if HOOKS.put_off:
        again(failures, finish_releases)
    for listener in HOOKS.listeners:
        _once(failures, listener.closed, scope)
    if scope._account is None:
        return refusal
    try:
        return HOOKS.memory.closed(scope) or refusal
    except BaseException as error:
        failures.append(error)
    return HOOKS.memory.closed(scope) or refusal


def raise_what_failed(
    scope: DisposeScope,
    doing: str,
    failures: list[BaseException],
    escaped: EscapedError | None,
    in_flight: BaseException | None,
    /,
) -> None:
    """Raise what failed while a scope was left, or add it to the exception that passes through.

    Parameters
    ----------
    scope : DisposeScope
        The scope.
    doing : {"leaving", "closing"}
        What was done to it.
    failures : list of BaseException
        What releases, listeners and hooks raised.
    escaped : EscapedError or None
        What `end` returned.
    in_flight : BaseException or None
        The exception that passes through the block.
    """
    try:
        if escaped is not None:
            if in_flight is not None:
                # Only a note: the traceback of an exception holds frames, and these hold arrays.
                in_flight.add_note(str(escaped))
            elif failures:
                failures.append(escaped)
            else:
                raise escaped
        if failures:
            raise_failures(failures, f"{doing} {scope._called()}", in_flight)
    finally:
        # The tracebacks of these exceptions refer to this frame: the references would make cycles.
        del escaped, in_flight


def release_each(entries: list[Entry], failures: list[BaseException], *, by_owner: bool = False) -> None:
    """Release entries, the last one first, until none is left. Can be repeated if interrupted."""
    while entries:
        failure = release(entries[-1], True, by_owner)
        entries.pop()
        if failure is not None:
            failures.append(failure)
            failure = None


def release_all_but(scope: DisposeScope, kept: set[Entry]) -> list[BaseException]:
    """Release what a scope owns now, newest first, except `kept`; return what releases raised.

    Resources that a release creates are left.
    """
    failures: list[BaseException] = []
    pending = [entry for entry in list(scope._entries) if entry not in kept]
    for _ in range(2):
        try:
            while pending:
                # Whoever takes an entry out of `_entries` may release or move it; no other thread.
                if scope._entries.pop(pending[-1], 0) is None:
                    release_each([pending[-1]], failures, by_owner=True)
                pending.pop()
            break
        except BaseException as error:
            failures.append(error)
            if pending and pending[-1].owner is scope:
                # The entry was taken out, but not released: it is put back.
                scope._entries[pending[-1]] = None
    if HOOKS.put_off:
        again(failures, finish_releases)
    return failures


# The decorator: a scope around each call of a function. What the function returns or yields is
# moved to the caller's scope.


P = ParamSpec("P")
T = TypeVar("T")


def decorate(scope: DisposeScope, function: Any) -> Callable[..., Any]:
    """Wrap a function so each call has a fresh scope like `scope`: see `DisposeScope.__call__`."""
    if isinstance(function, type) or not callable(function):
        what = "no function was given" if function is None else f"{function!r} is not one"
        raise TypeError(f"@dispose_scope() decorates functions, coroutine functions and generator functions; {what}")
    if scope._state:
        raise TypeError(f"{scope!r} has been entered; a decorator is made anew: @dispose_scope()")
    code: object = getattr(inspect.unwrap(function), "__code__", None)
    if isinstance(code, CodeType):
        scope._origin = (scope.name, code, -1)
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(scope, function)
    if inspect.isgeneratorfunction(function):
        return _around_generator(scope, function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with scope._fresh() as fresh:
                result = function(*args, **kwargs)
                return fresh._hand_out(await (await_unlimited(fresh, result) if fresh._limits_recording else result))

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
                suspend_by_hand(fresh)
                resume: Callable[..., Any] = inner.send
                # The next argument of `resume`. It is popped, because an exception in a variable of
                # this frame would be in a cycle with it.
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
                suspend_by_hand(fresh)
                resume: Callable[..., Any] = inner.asend
                given: list[Any] = [None]
                while True:
                    try:
                        step = resume(given.pop())
                        yielded = fresh._hand_out(
                            await (await_unlimited(fresh, step) if fresh._limits_recording else step)
                        )
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
class DisposeScope(ScopeState):
    """A block of code that owns the tensors born in it, and releases them when it is left.

    ``with dispose_scope() as scope:`` opens one; as a decorator, ``@dispose_scope()``, it opens a
    fresh one for each call and moves what the function returns or yields to the caller's scope. To
    let something outlive the block, move it out by name: ``return scope.move_to_outer(result)``.

    A scope tracks weakly and never extends a lifetime: a temporary dies by reference count as it
    would without it. A scope is used for only one ``with`` statement. The current scope follows
    ``contextvars``, so threads and asyncio tasks each have their own.

    Parameters
    ----------
    name : str, optional
        Shown in reprs, messages and reports.
    strict : bool, default False
        Raise `NotOwnedError` where a verb names a resource that this scope does not own, instead of
        leaving it as it is.
    graph : {"keep", "detach", "error", "none", "refuse"}, default "keep"
        What happens when a tensor that carries an autograd graph leaves this scope: moved to
        another scope or out of every one, or given out by a decorated function. It keeps its graph
        (``statistics().graphs_kept`` counts them); it is detached, in place, with the same values
        and storage and no history; or the verb raises `GraphRetainedError` and changes nothing.
        The last two say what the block may record: with "none" nothing is recorded in it, as in
        ``torch.no_grad()``; with "refuse", which looks at each call and is meant for tests, the
        first operation that records a graph raises `GraphRetainedError`, and so does moving a graph
        out.
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
        `MemoryError`, which gets notes before it leaves the scope. If scopes with budgets are
        nested, the tightest budget applies.
    escapes : {"dispose", "keep", "raise"}, default "dispose"
        What happens to what is still held when the block ends: referenced by more than the block's
        own variables, such as a list, an attribute, a closure, or a variable that was bound before
        the block began. It is disposed like all else; or it is handed to the outer scope, as moved
        out (`escaped` lists it, ``statistics().escaped`` counts it), so that a program that keeps
        something on purpose runs unchanged; or all is disposed and `EscapedError` lists what was
        held, for tests. A variable is the block's own where it was unbound, or bound to something
        disposed, when the block began. In doubt a resource counts as held.

    Raises
    ------
    ValueError
        `graph` or `escapes` is none of those, or `budget` is not a positive amount, or given with
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

    __slots__ = ()

    # The compiled `__enter__` and `__exit__` call these in unusual cases.
    _end = end
    _explain = staticmethod(explain)
    _forget_ended_generators = forget_ended_generators
    _raise_what_failed = raise_what_failed
    _resolve = resolve

    @property
    def closed(self) -> bool:
        """Whether the scope has been closed; False also before it is entered."""
        return self._state == CLOSED

    @property
    def outer(self) -> DisposeScope | None:
        """The scope that was current when this one was opened.

        Once that scope is closed, this is the next outer scope that is open, or None if there is
        none.
        """
        if not self._state:
            return None
        outer = self._outer
        while outer is not None and outer._state == CLOSED:
            outer = outer._outer
        return cast("DisposeScope | None", outer)

    @property
    def live(self) -> tuple[Any, ...]:
        """The resources that this scope owns, oldest first; a composite stands for its members.

        The tuple is a snapshot, and holds them: they live at least as long as it does.
        """
        self._check_open("live")
        if DEAD_COMPOSITES or KINDS.finders:
            catch_up(self)
        resources = (entry() for entry in list(self._entries))
        return tuple(resource for resource in resources if resource is not None)

    @property
    def nbytes(self) -> int:
        """The bytes of what this scope owns, plain arrays included, each storage counted once."""
        self._check_open("nbytes")
        return self._nbytes()

    def _nbytes(self) -> int:
        if DEAD_COMPOSITES or KINDS.finders:
            catch_up(self)
        found: dict[Hashable, int] = {}
        for entry in list(self._entries):
            storages_of(entry, found)
        total = sum(found.values())
        if self._account is not None:
            total += HOOKS.memory.nbytes(self)
        return total

    @property
    def escaped(self) -> EscapedResources:
        """A tuple of what was held when the block ended and is still alive.

        It is empty unless the scope has ``escapes="keep"``. The tuple holds the resources. Its
        ``repr`` describes them, with the lines where they were born while a leak detector is open.
        """
        return escaped_of(self)

    @property
    def arena(self) -> ArenaUse | None:
        """What the arena serves for this scope; None where NumPy's own allocator serves it."""
        return HOOKS.memory.use(self) if self._arena else None

    def __len__(self) -> int:
        if DEAD_COMPOSITES or KINDS.finders:
            catch_up(self)
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, resource: object) -> bool:
        if DEAD_COMPOSITES:
            settle()
        if KINDS.finders and finder_of(resource) is not None:
            find_births_of((resource,), self)
        entry = owning_entry_of(resource)
        if entry is None:
            return self._account is not None and HOOKS.memory.owner(resource) is self
        return owner_of_entry(entry) is self

    def __repr__(self) -> str:
        state = ("unopened", "open", "closed")[self._state]
        named = "" if self.name is None else f" {self.name!r}"
        owned = "" if self._state != OPEN else f", owns {len(self)}, {self._nbytes()} bytes"
        graph = "" if self.graph == "keep" else f", graph={self.graph!r}"
        return f"<DisposeScope{named} {state}{graph}{owned}>"

    def __reduce__(self) -> Any:
        if self._state:
            raise TypeError("a scope belongs to a block of code in its own process and cannot be pickled or copied")
        # Engines such as Ray send a decorated function by value, with the scope in its closure.
        return _unopened, (self._origin, *self._options())

    def _options(self) -> tuple[Any, ...]:
        return self.name, self.strict, self.graph, self.keep_pages, self._arena, self.budget, self.escapes

    def _called(self) -> str:
        return "a scope" if self.name is None else f"scope {self.name!r}"

    def _check_open(self, verb: str) -> None:
        if self._state == CLOSED:
            raise ScopeClosedError(f"{verb}: {self._called()} is closed and owns nothing any more", scope=repr(self))
        if self._state == UNOPENED:
            raise ScopeNestingError(
                f"{verb}: {self._called()} has not been entered; open it with a with statement first", scope=repr(self)
            )

    def _take(self, entry: Entry, /) -> None:
        self._entries[entry] = None
        if self._state == CLOSED and self._entries.pop(entry, 0) is None:
            # Another thread has just closed this scope: the entry goes to the next open scope out.
            count_open_birth(entry)
            outer = self.outer
            if not change_owner(entry, self, outer):
                return
            if outer is None:
                thread_ledger().detached += 1
                let_go(entry)
            else:
                outer._take(entry)
        elif LIVE.get(entry.key) is not entry:
            # Another thread released it while it was in no scope's `_entries`.
            self._entries.pop(entry, None)

    def move_to_outer(self, tree: T, *, compact: bool = False) -> T:
        """Give what this scope owns in a tree to the outer scope; without one it becomes unowned.

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

    def keep(self, tree: T) -> T:
        """Take what this scope owns in a tree out of every scope, for good.

        It lives by reference count from now on. `detach` is the same method. What this scope does
        not own, or has been disposed, is left as it is (in a strict scope: `NotOwnedError`).

        Parameters
        ----------
        tree : T
            As for `move_to_outer`.

        Returns
        -------
        T
            `tree` itself.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        UnknownKindError
            An object of unknown type in the tree hides a resource that this scope owns. Nothing has
            changed.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.dispose_scope("epoch"):
        ...     with ds.dispose_scope("step") as step:
        ...         best = step.keep(ds.zeros(3))
        >>> ds.is_disposed(best), ds.owner_of(best)
        (False, None)
        """
        self._check_open("keep")
        plain: list[object] = []
        hand_over(self, owned_in(self, tree, "keep", plain), None, plain)
        return tree

    detach = keep

    def attach(self, tree: T) -> T:
        """Take over the resources in a tree, whoever owned them before. Returns `tree`.

        This scope will dispose them. Of a model (a ``torch.nn.Module``, a metric, an optimizer) it
        takes over what other scopes own, and neither parameters nor buffers.

        Objects of your own kinds (a method ``dispose()``, or `register_kind`) get known to the
        library here. The scope holds them until they are released or kept, so that
        ``scope.attach(Handle())`` needs no variable. None, and containers with nothing or only None
        in them, are attached without effect.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        DisposedError
            A resource in the tree has been disposed.
        DeviceMismatchError
            The members of a composite live on different devices.
        UnknownKindError
            An object of unknown type hides a resource, or there is something in the tree and none
            of it is a resource. Nothing has been attached, in this case as in the others.

        Examples
        --------
        >>> import disposescope as ds
        >>> class Handle:
        ...     def dispose(self):
        ...         print("released")
        >>> with ds.dispose_scope() as scope:
        ...     _ = scope.attach(Handle())
        released
        """
        if not self._attach(tree):
            refuse_without_resources(tree, "attach")
        return tree

    def _attach(self, tree: object) -> bool:
        """Take over the resources in a tree, and return whether there are any."""
        self._check_open("attach")
        plain: list[object] = []
        hides = finding_births(is_tracked)
        resources = resources_in(tree, hides, "the tree given to attach()", plain, is_owned=finding_births(is_owned))
        take_over(self, resources)
        for array in plain:
            HOOKS.memory.move(array, HOOKS.memory.owner(array), self)
        return bool(resources or plain)

    def dispose_everything(self) -> None:
        """Release all that this scope owns now; the scope stays open.

        Raises
        ------
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything")
        if DEAD_COMPOSITES or KINDS.finders:
            catch_up()
        failures = release_all_but(self, set())
        if failures:
            raise_failures(failures, f"dispose_everything() of {self._called()}", None)

    def dispose_everything_but(self, tree: T) -> T:
        """Release all that this scope owns, except what is in the tree. Returns `tree`.

        What is in the tree but not owned by this scope is left as it is, and so is ``None``.

        Raises
        ------
        UnknownKindError
            An object of unknown type in the tree hides a resource of this scope. Nothing has been
            released.
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything_but")
        if DEAD_COMPOSITES or KINDS.finders:
            catch_up()
        kept = set(owned_in(self, tree, "dispose_everything_but", [], check_strict=False))
        failures = release_all_but(self, kept)
        if failures:
            raise_failures(failures, f"dispose_everything_but() of {self._called()}", None)
        return tree

    def _check_options(self) -> None:
        """Check the options; the compiled `__init__` calls it where one of them may be wrong."""
        name: object = self.name
        if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            if callable(name):
                raise TypeError("dispose_scope is called before it decorates: write @dispose_scope() with parentheses")
            raise TypeError(f"dispose_scope: name must be a str, not {name!r}")
        check_graph_option(self.graph)
        check_escapes_option(self.escapes)
        if self.budget is not None:
            self.budget = parse_budget(self.budget)
            if not self._arena:
                raise ValueError("a budget is kept by the arena: give no budget, or leave out arena=False")

    def _prepare(self) -> None:
        """Find the scope's place in the stack: see `enter_among_generators`.

        The compiled `__enter__` calls this if the block may be a generator's, a module was imported
        that is awaited, or the scope was entered before.
        """
        if self._state:
            self._refuse_to_enter()
        if modules_were_imported():
            install_imported()
        enter_among_generators(self, CURRENT.get(), _getframe(1))

    def _begin(self) -> None:
        """Do what the options `keep_pages` and `escapes` ask for before the block begins.

        The compiled `__enter__` calls this.
        """
        if self.keep_pages:
            keep_pages(self)
        if self.escapes != "dispose":
            note_block(self, _getframe(1))

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
            self._leave("closing", None)

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
        """Return a new scope with the name and options of this one."""
        # The origin is the first line of the decorated function or, if it has no code, its caller.
        origin = self._origin
        if origin is None and (mark := mark_of(_getframe(1))) is not None:
            origin = self.name, *mark
        return _unopened(origin, *self._options())

    def _hand_out(self, result: T) -> T:
        """Move what a decorated function returns or yields to its caller's scope.

        What this scope does not own stays where it is, also in a strict scope.
        """
        plain: list[object] = []
        entries = owned_in(
            self,
            result,
            "move_to_outer",
            plain,
            what="what a decorated function returned or yielded",
            check_strict=False,
            is_result=True,
        )
        hand_over(self, entries, self.outer, plain)
        return result

    def _refuse_to_leave(self) -> None:
        raise ScopeNestingError(f"{self!r} was left without having been entered", scope=repr(self))

    def _refuse_to_enter(self) -> None:
        state = "is closed" if self._state == CLOSED else "is still open"
        raise ScopeNestingError(
            f"{self._called()} cannot be entered again, it {state}: a scope is used for one with statement; "
            "write dispose_scope() in each",
            scope=repr(self),
        )


def _unopened(
    origin: Origin | None,
    name: str | None,
    strict: bool,
    graph: GraphOption,
    keep_pages: bool,
    arena: bool,
    budget: int | str | None,
    escapes: EscapesOption,
) -> DisposeScope:
    scope = DisposeScope(
        name, strict=strict, graph=graph, keep_pages=keep_pages, arena=arena, budget=budget, escapes=escapes
    )
    scope._origin = origin
    return scope


# `tidy`: one call in a scope of its own.


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
