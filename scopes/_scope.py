"""The scope: a block of code that owns what is born in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from sys import _getframe, modules
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, cast, final, overload
from warnings import warn

from ._arrivals import AWAITED, look_for_arrivals, modules_seen
from ._budget import parse_budget
from ._current import (
    ANY_GENERATOR,
    CLOSED,
    CURRENT,
    ENTERING,
    OPEN,
    UNOPENED,
    current_scope,
    generator_frame,
    passed_over,
    resolve,
)
from ._decorator import decorate
from ._entries import (
    ESTATES,
    LIVE,
    Entry,
    Plan,
    absorb_members,
    arrays_of,
    check_alive,
    entry_of,
    gathered,
    is_tracked,
    let_go,
    owner_of_entry,
    plan_members,
    release,
    settle,
    standing_of,
    storages_of,
    track,
    unit_of,
)
from ._errors import NotOwnedError, ScopeClosedError, ScopeNestingError
from ._graphs import GraphOption, check_graph_option, let_graphs_out
from ._instruments import ENTERED, LEFT, LISTENERS
from ._kinds import ANCHORED, Kind, kind_of
from ._memory import MEMORY, ArenaUse
from ._pages import keep_pages, return_pages
from ._statistics import LOCAL
from ._trees import LEAF_TYPES, resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["DisposeScope", "raise_failures"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


@final
class DisposeScope:
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
    # Whether the arena serves the block, and whether anything is unusual about that: it does not, or there is a budget.
    _arena: bool
    _particular: bool
    # What the arena knows of this scope, once it has served it; what it puts back when the block is left.
    _account: object | None
    _served: object | None
    # The scope's owned entries, in the order in which they came; a dict, because it is an ordered set.
    _entries: dict[Entry, None]
    # The scope that this one was opened under, as the user sees it; and what lay in the context variable, which can
    # differ.
    _outer: DisposeScope | None
    _below: DisposeScope | None
    # Open, and nothing about generators to think of: the test on the hot path of every birth.
    _direct: bool
    _state: int
    # The frame of the generator whose block this is, as long as the scope is open.
    _frame: FrameType | None
    _passed_over: tuple[DisposeScope, ...]

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

    # ------------------------------------------------------------------ opening and closing

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
            self._enter_among_generators(below, _getframe(1))
        if self.keep_pages:
            keep_pages()
        self._state = OPEN
        CURRENT.set(self)
        if MEMORY and (below is None or not below._arena or not self._direct or self._particular):
            MEMORY[0].entered(self)
        if ENTERED:
            for entered in ENTERED:
                entered(self)
        if LISTENERS:
            for listener in LISTENERS:
                listener.opened(self)
        return self

    def _enter_among_generators(self, below: DisposeScope | None, frame: FrameType) -> None:
        """The slow way in: the block that is entered, or one around it, is a generator's."""
        while below is not None and below._state == CLOSED:
            # Closed in another context, and not on any way out of here: it need not be kept. What it had to put back
            # in this context is put back on the way out of this scope.
            if below._served is not None:
                self._served = below._served
            below = below._below
        self._below = self._outer = below
        if below is not None:
            # Scopes opened and closed crosswise, as by two loops in a zip, would hold one another in an ever longer
            # chain.
            below._outer = below.outer
        if below is not None and not below._direct:
            self._outer = resolve(below)
            self._passed_over = passed_over(below, self._outer)
        self._frame = generator_frame(frame)
        self._direct = self._frame is None and not self._passed_over

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        if CURRENT.get() is self:
            CURRENT.set(self._below)
            # The outermost scope found the arena in service where a task inherited it from a scope that is closed.
            if self._served is not None or (self._below is None and self._arena and MEMORY):
                MEMORY[0].left(self)
        else:
            self._leave_the_stack()
            if self._served is not None and CURRENT.get() is None:
                MEMORY[0].left(self)
        if exc is not None and MEMORY and isinstance(exc, MemoryError):
            MEMORY[0].explain(exc)
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
        failures = self._shut()
        if self._account is not None:
            self._hand_over_memory(failures, exc)
        if failures:
            try:
                raise_failures(failures, f"leaving {self._called()}", exc)
            finally:
                # This frame is reached from the failures' tracebacks, and they from the exception in flight.
                del exc, traceback
        return False

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
            CURRENT.set(self._below)
            if self._served is not None:
                MEMORY[0].left(self)
        if LEFT and self._state:
            for left in LEFT:
                left(self)
        failures = self._shut()
        if self._account is not None:
            self._hand_over_memory(failures, None)
        if failures:
            raise_failures(failures, f"closing {self._called()}", None)

    def _leave_the_stack(self) -> None:
        """Misnested, left in another context, or never entered: take this scope out from under those over it."""
        if not self._state:
            raise ScopeNestingError(f"{self!r} was left without having been entered", scope=repr(self))
        node = CURRENT.get()
        while node is not None:
            if node._below is self:
                node._below = self._below
                if self._served is not None and node._served is None:
                    node._served, self._served = self._served, None
                return
            node = node._below

    def _shut(self) -> list[BaseException]:
        if ESTATES:
            settle()
        keeps_pages = self.keep_pages and self._state == OPEN
        self._state = CLOSED
        self._direct = False
        self._frame = None
        self._passed_over = ()
        failures: list[BaseException] = []
        if self._entries:
            failures = self._release_owned()
        if keeps_pages:
            return_pages()
        if LISTENERS:
            for listener in LISTENERS:
                listener.closed(self)
        return failures

    def _hand_over_memory(self, failures: list[BaseException], in_flight: BaseException | None) -> None:
        """Give the plain memory in use to the outer scope, and say what a strict scope has to say about it."""
        escaped = MEMORY[0].closed(self)
        if escaped is None:
            return
        if in_flight is not None:
            # Its traceback holds the frames, and they the arrays: no wonder.
            in_flight.add_note(str(escaped))
        elif failures:
            failures.append(escaped)
        else:
            try:
                raise escaped
            finally:
                # This frame is in its traceback: kept here, it would be a cycle.
                del escaped

    def _release_owned(self) -> list[BaseException]:
        """Release the newest first, as ``contextlib.ExitStack`` does, until nothing is left."""
        failures: list[BaseException] = []
        entries = self._entries
        while True:
            try:
                while True:
                    try:
                        entry, _ = entries.popitem()
                    except KeyError:
                        break
                    failure = release(entry)
                    if failure is not None:
                        failures.append(failure)
                        # This frame is reached from its traceback: kept here, it would be a cycle.
                        failure = None
                if not ESTATES:
                    return failures
                # A composite of this scope died by a release above: its members are still this scope's to release.
                settle(self)
                if not entries:
                    return failures
            except BaseException as error:
                # An interrupt between two releases: what it tore out of the list is found by its owner.
                failures.append(error)
                entries.update(dict.fromkeys(entry for entry in list(LIVE.values()) if entry.owner is self))

    def _release_all_but(self, kept: set[Entry]) -> list[BaseException]:
        """Release what is owned now, the newest first; what a release brings into being meanwhile stays."""
        failures: list[BaseException] = []
        for entry in list(self._entries)[::-1]:
            # Taking the entry out is the claim, as for a move.
            if entry not in kept and self._entries.pop(entry, 0) is None:
                failure = release(entry)
                if failure is not None:
                    failures.append(failure)
                    failure = None
        return failures

    # ------------------------------------------------------------------ the verbs

    def move_to_outer(self, tree: T) -> T:
        """Give what this scope owns in a tree to the outer scope; with no outer scope it becomes unowned.

        Parameters
        ----------
        tree : T
            A resource, or any nesting of containers: list, tuple, namedtuple, dict and other mappings, set,
            frozenset, deque, dataclass, attrs class, array of objects. What this scope does not own is left as it is
            (in a strict scope:
            `NotOwnedError`); a member stands for its composite.

        Returns
        -------
        T
            `tree` itself.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        UnknownKindError
            An object of unknown type in the tree hides a resource that this scope owns. Nothing has moved.
        """
        self._check_open("move_to_outer")
        plain: list[object] = []
        entries = self._owned_in(tree, "move_to_outer", plain)
        self._hand_over(entries, self.outer, plain)
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
        entries = self._owned_in(tree, "move_to", plain)
        if other is not self:
            self._hand_over(entries, other, plain)
        return tree

    def detach(self, tree: T) -> T:
        """Give up what this scope owns in a tree: it becomes unowned and lives by reference count. Returns `tree`.

        Otherwise as `move_to_outer`.
        """
        self._check_open("detach")
        plain: list[object] = []
        self._hand_over(self._owned_in(tree, "detach", plain), None, plain)
        return tree

    def attach(self, tree: T) -> T:
        """Take over the resources in a tree, whoever owned them before; this scope will dispose them. Returns `tree`.

        Objects of the user's own with a method ``dispose()`` get known to the library here. One that cannot be weakly
        referenced is held until it is disposed or detached.

        Raises
        ------
        ScopeClosedError, ScopeNestingError
            This scope is closed, or has not been entered.
        DisposedError
            A resource in the tree has been disposed.
        DeviceMismatchError
            The members of a composite live on different devices.
        UnknownKindError
            An object of unknown type hides a resource. Nothing has been attached, in this case as in the others.
        """
        self._check_open("attach")
        plain: list[object] = []
        self._attach(resources_in(tree, is_tracked, "the tree given to attach()", plain))
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
        if ESTATES:
            settle()
        failures = self._release_all_but(set())
        if failures:
            raise_failures(failures, f"dispose_everything() of {self._called()}", None)

    def dispose_everything_but(self, tree: T) -> T:
        """Release all that this scope owns, except what is in the tree. Returns `tree`.

        What is in the tree and not owned by this scope is left as it is, and so is ``None``.

        Raises
        ------
        UnknownKindError
            An object of unknown type in the tree hides a resource of this scope. Nothing has been released.
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._check_open("dispose_everything_but")
        kept = set(self._owned_in(tree, "dispose_everything_but", [], check_strict=False))
        failures = self._release_all_but(kept)
        if failures:
            raise_failures(failures, f"dispose_everything_but() of {self._called()}", None)
        return tree

    # ------------------------------------------------------------------ what it tells

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
        if ESTATES:
            settle()
        resources = (entry() for entry in list(self._entries))
        return tuple(resource for resource in resources if resource is not None)

    @property
    def nbytes(self) -> int:
        """The bytes of the storages behind what this scope owns, plain arrays included, each storage counted once."""
        self._check_open("nbytes")
        return self._nbytes()

    def _nbytes(self) -> int:
        if ESTATES:
            settle()
        found: dict[Hashable, int] = {}
        for entry in list(self._entries):
            storages_of(entry, found)
        total = sum(found.values())
        if self._account is not None:
            total += MEMORY[0].nbytes(self, [array for entry in list(self._entries) for array in arrays_of(entry)])
        return total

    @property
    def arena(self) -> ArenaUse | None:
        """What the arena serves for this scope; None where NumPy's own allocator serves it."""
        return MEMORY[0].use(self) if MEMORY and self._arena else None

    def __len__(self) -> int:
        if ESTATES:
            settle()
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, resource: object) -> bool:
        if ESTATES:
            settle()
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

    # ------------------------------------------------------------------ as a decorator

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
        self._hand_over(self._owned_in(result, "the return", plain, check_strict=False), self.outer, plain)
        return result

    def _drive_by_hand(self) -> None:
        """Whoever entered this scope in a generator takes it off the stack while the generator is suspended."""
        self._frame = None
        self._direct = not self._passed_over

    def _suspend(self) -> DisposeScope | None:
        """Take this scope, and what was entered over it, off the context variable; returns what `_resume` wants."""
        top = CURRENT.get()
        node = top
        while node is not None and node is not self:
            node = node._below
        if node is None:
            return None
        CURRENT.set(self._below)
        if self._served is not None:
            MEMORY[0].left(self)
        return top

    def _resume(self, top: DisposeScope | None) -> None:
        """Put this scope, and what was entered over it when it was suspended, over the current scope."""
        if self._state == CLOSED:
            return
        below = CURRENT.get()
        self._below = below
        self._outer = current_scope()
        CURRENT.set(self if top is None else top)
        if MEMORY:
            MEMORY[0].entered(self)

    # ------------------------------------------------------------------ underneath

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

    def _called(self) -> str:
        return "a scope" if self.name is None else f"scope {self.name!r}"

    def _check_open(self, verb: str) -> None:
        if self._state == CLOSED:
            raise ScopeClosedError(f"{verb}: {self._called()} is closed and owns nothing any more", scope=repr(self))
        if self._state == UNOPENED:
            raise ScopeNestingError(
                f"{verb}: {self._called()} has not been entered; open it with a with statement first", scope=repr(self)
            )

    def _refuse_to_enter(self) -> None:
        state = "is closed" if self._state == CLOSED else "is still open"
        raise ScopeNestingError(
            f"{self._called()} cannot be entered again, it {state}: a scope is used for one with statement; "
            "write dispose_scope() in each",
            scope=repr(self),
        )

    def _hides(self, thing: object) -> bool:
        entry = entry_of(thing)
        return entry is not None and owner_of_entry(entry) is self

    def _owned_in(self, tree: object, verb: str, plain: list[object], *, check_strict: bool = True) -> list[Entry]:
        """The entries that this scope owns in a tree, each composite once; `plain` gets its arrays. Changes nothing."""
        if ESTATES:
            settle()
        found: dict[Entry, None] = {}
        resources = resources_in(tree, self._hides, f"the tree given to {verb}()", plain)
        if ANCHORED:
            resources = [part for resource in resources for part in gathered(resource, self)]
        for resource in resources:
            entry = entry_of(resource)
            unit = None if entry is None else unit_of(entry)
            if unit is not None and unit.owner is self and (entry is unit or not (self.strict and check_strict)):
                found[unit] = None
            elif self.strict and check_strict:
                self._refuse_foreign(resource, entry, unit, verb)
        if self.strict and check_strict:
            for array in plain:
                self._refuse_foreign_array(array, verb)
        return list(found)

    def _refuse_foreign_array(self, array: object, verb: str) -> None:
        memory = MEMORY[0]
        owner = memory.owner(array)
        if owner is not self and memory.is_served(array):
            described, owned = type(array).__qualname__, "nobody" if owner is None else repr(owner)
            raise NotOwnedError(
                f"{verb}: {self!r} does not own this {described}; its owner is {owned}", resource=described, owner=owned
            )

    def _refuse_foreign(self, resource: object, entry: Entry | None, unit: Entry | None, verb: str) -> None:
        kind = kind_of(resource)
        described = type(resource).__qualname__ if kind is None else kind.describe(resource)
        owner = "nobody" if unit is None or unit.owner is None else repr(unit.owner)
        if kind is not None and entry is None:
            with suppress(ReferenceError):
                check_alive(resource, kind)
            owner = "nobody, for it was never attached or has been disposed"
        if unit is not None and unit is not entry:
            raise NotOwnedError(
                f"{verb}: {described} is a member of a {unit.kind.name}, which {owner} owns; "
                f"name the {unit.kind.name} itself",
                resource=described,
                owner=owner,
            )
        raise NotOwnedError(
            f"{verb}: {self!r} does not own {described}; its owner is {owner}", resource=described, owner=owner
        )

    def _hand_over(self, entries: list[Entry], target: DisposeScope | None, plain: list[object]) -> None:
        ledger = LOCAL.ledger
        ledger.graphs_kept += let_graphs_out(entries, self.graph, f"leaving {self._called()}")
        if self._account is not None:
            for array in plain:
                MEMORY[0].move(array, self, target)
        for entry in entries:
            # Taking the entry out is the claim: a release or a move on another thread finds nothing then.
            if self._entries.pop(entry, 0) is not None:
                continue
            entry.owner = target
            if self._account is not None:
                for array in arrays_of(entry):
                    MEMORY[0].move(array, self, target)
            if target is None:
                ledger.detached += 1
                let_go(entry)
            else:
                ledger.moved += 1
                target._take(entry)
            if LISTENERS:
                for listener in LISTENERS:
                    listener.moved(entry, self, target)

    def _take(self, entry: Entry) -> None:
        self._entries[entry] = None
        if self._state == CLOSED and self._entries.pop(entry, 0) is None:
            # Closed by another thread a moment ago: the entry goes where the next birth would.
            entry.owner = outer = self.outer
            if outer is None:
                let_go(entry)
            else:
                outer._take(entry)
        elif LIVE.get(entry.key) is not entry:
            # Released by another thread while it was nobody's.
            self._entries.pop(entry, None)

    def _claim_unowned(self, entry: Entry) -> bool:
        """Become the owner of what has none; False where another thread was faster: it is as if that one came later."""
        claim = object()
        if _CLAIMS.setdefault(entry, claim) is not claim:
            return False
        try:
            if entry.owner is not None:
                return False
            entry.owner = self
            return True
        finally:
            del _CLAIMS[entry]

    def _attach(self, resources: list[object]) -> None:
        if ESTATES:
            settle()
        planned: list[tuple[object, Kind, Plan]] = []
        for resource in resources:
            kind = kind_of(resource)
            if kind is None:
                continue
            check_alive(resource, kind)
            if kind.anchor is not None:
                standing = standing_of(resource)
                if standing is not None and standing.owner is not None:
                    gathered(resource, standing.owner)
            entry = entry_of(resource)
            if self.strict and entry is not None and entry.unit is not None:
                self._refuse_foreign(resource, entry, unit_of(entry), "attach")
            known = entry is not None and kind.anchor is None
            planned.append((resource, kind, [] if known else plan_members(resource, kind)))
        fresh: set[Entry] = set()
        entries: list[Entry] = []
        for resource, kind, plan in planned:
            entry = entry_of(resource)
            if entry is None:
                entry = track(resource, kind)
                fresh.add(entry)
            if plan:
                absorb_members(entry, plan)
            entries.append(entry)
        ledger = LOCAL.ledger
        for entry in {unit_of(entry): None for entry in entries}:
            source = entry.owner
            if source is self:
                continue
            if source is None:
                if not self._claim_unowned(entry):
                    continue
            elif source._entries.pop(entry, 0) is not None:
                continue
            else:
                entry.owner = self
            if source is None:
                ledger.attached += 1
            else:
                ledger.moved += 1
            self._take(entry)
            if MEMORY:
                for array in arrays_of(entry):
                    MEMORY[0].move(array, source, self)
            if LISTENERS:
                for listener in LISTENERS:
                    if entry in fresh:
                        listener.born(entry)
                    listener.moved(entry, source, self)


# What refers to a scope does not hide what the scope owns.
LEAF_TYPES.add(DisposeScope)

_CLAIMS: Final[dict[Entry, object]] = {}
"""Unowned resources that a thread is giving an owner."""


def raise_failures(failures: list[BaseException], doing: str, in_flight: BaseException | None) -> None:
    """Raise what went wrong in releases as one group, or hang it onto the exception that is on its way already."""
    count = len(failures)
    others = [failure for failure in failures if failure is not in_flight]
    # The frames that hold this list are reached from the failures' tracebacks: full, it would be in a cycle with them.
    failures.clear()
    if in_flight is None:
        group = BaseExceptionGroup(f"{doing}: {count} of the releases failed; all others were done", others)
        del others
        try:
            raise group
        finally:
            # This frame is in its traceback: kept here, it would be a cycle.
            del group
    in_flight.add_note(f"while {doing}, {count} releases failed; they are in its __context__")
    if not others:
        return
    for failure in others:
        _cut_context(failure, in_flight)
    # The exception in flight propagates; the group joins its context, at the end of the chain that is there.
    last = in_flight
    met = {id(last)}
    while last.__context__ is not None and id(last.__context__) not in met:
        last = last.__context__
        met.add(id(last))
    last.__context__ = BaseExceptionGroup(f"{doing}: {count} of the releases failed; all others were done", others)


def _cut_context(failure: BaseException, in_flight: BaseException) -> None:
    """Take the exception in flight out of a failure's context, where Python put it: the failure will be in its."""
    pending = [failure]
    met: set[int] = set()
    while pending:
        error = pending.pop()
        if id(error) in met:
            continue
        met.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            pending.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
        if error.__context__ is in_flight:
            error.__context__ = None
        elif error.__context__ is not None:
            pending.append(error.__context__)
