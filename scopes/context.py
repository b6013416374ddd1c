"""Listeners and hooks, the service of plain memory, and which scope is current.

A listener, such as a leak detector, is called at births, moves and disposals. Without listeners
this costs nothing, because the compiled code looks at an empty list.

Plain memory is the memory of plain arrays, which are no resources: a scope never invalidates it.
The arena, which allocates it, registers itself here. A scope switches the arena on and off, and
gives the plain memory that is in use when it is closed to the outer scope.

Which scope is current depends on the context variable, on suspended generators, and on the stack
of open scopes.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from sys import _getframe, version_info
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast, final

from .base.process import at_forks
from .compiled import CURRENT, ENTERED, ENTERING, LEFT, LISTENERS, Entry, ScopeState, set_current, set_memory_service

if TYPE_CHECKING:
    from .base.errors import EscapedError

__all__ = [
    "ArenaUse",
    "CLOSED",
    "CURRENT",
    "HOOKS",
    "OPEN",
    "UNOPENED",
    "Witness",
    "add_listener",
    "after_releases",
    "await_unlimited",
    "suspend_by_hand",
    "enter_among_generators",
    "finish_releases",
    "innermost_scope",
    "forget_ended_generators",
    "remove_listener",
    "resolve",
    "resume_scope",
    "serve_plain_memory",
    "suspend_scope",
    "suspended",
]

# The protocols that other packages implement: listeners, hooks, and the service of plain memory.


class Listener(Protocol):
    """What a listener implements.

    A call comes in the thread of the event, before the verb returns. The exception are births of
    PyTorch's tensors: they are told when the next tensor is made or a scope ends, on any thread.

    A listener must not raise, must not create or dispose resources, and must not keep a resource
    alive. It may keep an entry, which is a weak reference.
    """

    def born(self, entry: Entry) -> None:
        """A resource was created (`entry.owner` owns it), or first met by ``attach``."""

    def moved(self, entry: Entry, source: ScopeState | None, target: ScopeState | None) -> None:
        """The owner of a resource changed; None means unowned."""

    def disposed(self, entry: Entry, owner: ScopeState | None) -> None:
        """A resource was released while it was still referenced by at least its caller."""

    def died(self, entry: Entry) -> None:
        """The last reference of a resource, live or disposed, is gone."""

    def opened(self, scope: ScopeState) -> None:
        """A scope was entered."""

    def closed(self, scope: ScopeState) -> None:
        """A scope was closed, after it released what it owned."""

    def stepped(self) -> None:
        """An optimizer has made a step."""

    def line_of_birth(self, entry: Entry) -> str:
        """Return the line where a resource was born; empty where unknown."""
        ...

    def story(self, entry: Entry) -> str:
        """Return where a resource was born and disposed, for a message; empty where unknown."""
        ...


def add_listener(listener: Listener) -> None:
    """Call a listener at every event from now on."""
    HOOKS.listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling a listener. Does nothing if it was not added."""
    for place, each in enumerate(HOOKS.listeners):
        if each is listener:
            del HOOKS.listeners[place]
            return


class Witness(Protocol):
    """What a scope with ``escapes="raise"`` opens, to describe what is held at its end."""

    def lines_of(self, entries: Sequence[Entry], /) -> list[str]:
        """Return the line where each resource was born; empty where that is unknown."""
        ...

    def holders_of(self, entries: Sequence[Entry], /) -> list[str]:
        """Return the holder of each resource, as text; empty where that is unknown."""
        ...

    def close(self) -> None:
        """Stop watching. Idempotent."""


@final
@dataclass(frozen=True, slots=True)
class ArenaUse:
    """What the arena serves for one scope.

    Attributes
    ----------
    blocks, live_nbytes : int
        Blocks that the scope owns now, and the bytes that were asked for in them. 0 once it is
        closed.
    peak_nbytes : int
        The most bytes that it owned at once.
    hits, misses : int
        Blocks born in the scope without asking the system for memory, and with.
    escapes, escaped_nbytes : int
        Blocks that were in use when the scope was closed and not moved out before, and their bytes:
        they belong to the outer scope since.
    budget : int or None
        The bytes that may be in use at once.
    charged_nbytes : int
        The bytes in use that count against the budget, in this scope and in those inside it,
        tensors of other libraries included.
    """

    blocks: int
    live_nbytes: int
    peak_nbytes: int
    hits: int
    misses: int
    escapes: int
    escaped_nbytes: int
    budget: int | None
    charged_nbytes: int


class Memory(Protocol):
    """What the allocator of plain memory, the arena, implements.

    No method may be called while another scope is being changed.
    """

    def entered(self, scope: ScopeState, /) -> object:
        """Serve the context with the scope's options.

        The scope's ``_served`` is set to what `left` puts back.
        """

    def left(self, scope: ScopeState, /) -> object:
        """Put back what served the context before `entered`."""

    def closed(self, scope: ScopeState, /) -> EscapedError | None:
        """Give the scope's memory that is in use to the outer scope.

        Called after the scope has released what it owns. Memory behind a live resource goes to the
        owner of that resource. Returns the error that a strict scope raises, or None.
        """
        ...

    def use(self, scope: ScopeState, /) -> ArenaUse | None:
        """Return what the arena serves for the scope; None if it serves nothing."""
        ...

    def nbytes(self, scope: ScopeState, /) -> int:
        """Return the scope's bytes in use, without the memory behind resources of any owner."""
        ...

    def is_plain(self, thing: object, /) -> bool:
        """Return whether an object is plain memory, whoever serves it."""
        ...

    def owner(self, thing: object, /) -> ScopeState | None:
        """Return the scope that owns the memory behind an object.

        None if it is unowned, or not the arena's.
        """
        ...

    def is_served(self, thing: object, /) -> bool:
        """Return whether the memory behind an object is the arena's."""
        ...

    def move(self, thing: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
        """Change the owner of the memory behind an object, if `source` owns it (None: nobody).

        Return whether it was changed. It is not for the memory behind a resource, if anything else
        refers to that memory too.
        """
        ...

    def explain(self, error: MemoryError, /) -> None:
        """Add notes to an error about the budget that refused the memory."""

    def compact_copy(self, thing: object, /) -> object:
        """Return a copy of an array that pins more memory than it uses; else the array itself."""
        ...


@final
class _NoMemory:
    """The `Memory` until the arena registers itself: it serves nothing."""

    __slots__ = ()

    def entered(self, scope: ScopeState, /) -> object:
        return None

    def left(self, scope: ScopeState, /) -> object:
        return None

    def closed(self, scope: ScopeState, /) -> EscapedError | None:
        return None

    def use(self, scope: ScopeState, /) -> ArenaUse | None:
        return None

    def nbytes(self, scope: ScopeState, /) -> int:
        return 0

    def is_plain(self, thing: object, /) -> bool:
        return False

    def owner(self, thing: object, /) -> ScopeState | None:
        return None

    def is_served(self, thing: object, /) -> bool:
        return False

    def move(self, thing: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
        return False

    def explain(self, error: MemoryError, /) -> None:
        return None

    def compact_copy(self, thing: object, /) -> object:
        return thing


@final
class Hooks:
    """Functions and services that scopes call. The one instance is `HOOKS`.

    The functions of a list are called in the order in which they were added.

    Attributes
    ----------
    listeners : list of Listener
        Told of births, moves and disposals: see `add_listener`.
    entered : list of callable
        Called with a scope that has been entered, in its thread.
    left : list of callable
        Called with a scope that is left or closed, before it releases what it owns. If the scope
        limits what its block records, they are called again when the block is left after the scope
        was closed. `left` and `entered` are also called around each suspension of a generator or
        coroutine that such a scope decorates.
    array_moved_out : list of callable
        Called with each plain array that is moved out of a scope, whatever allocated its memory.
        They do not raise.
    children : list of callable
        Called with an object that is no container of Python's; they return what it holds, labelled
        as code would reach it, or None if they do not know the object.
    put_off : list of callable
        Called once when all releases that belong together are done: see `after_releases`.
    memory : Memory
        The service of plain memory: see `serve_plain_memory`.
    open_witness : callable, optional
        Opens a `Witness`. `disposescope/__init__.py` sets it.
    """

    __slots__ = ("array_moved_out", "children", "entered", "left", "listeners", "memory", "open_witness", "put_off")

    def __init__(self) -> None:
        self.listeners: list[Listener] = LISTENERS
        self.entered = ENTERED
        self.left = LEFT
        self.memory: Memory = _NoMemory()
        self.array_moved_out: list[Callable[[object], object]] = []
        self.children: list[Callable[[object], Iterator[tuple[str, object]] | None]] = []
        self.put_off: list[Callable[[], object]] = []
        self.open_witness: Callable[[], Witness] | None = None

    def add(
        self, event: Literal["array_moved_out", "children", "entered", "left"], function: Callable[..., object]
    ) -> None:
        """Add a function to the list of an event, unless it is there already."""
        functions: list[Any] = getattr(self, event)
        if function not in functions:
            functions.append(function)


HOOKS: Final = Hooks()


def after_releases(function: Callable[[], object]) -> None:
    """Call a function once, when all releases that belong together are done."""
    HOOKS.put_off.append(function)


def finish_releases() -> None:
    """Call the functions of `after_releases`."""
    put_off = HOOKS.put_off
    while put_off:
        # A function is removed after its call, so that it is called again after an interrupt.
        put_off[-1]()
        del put_off[-1:]


def serve_plain_memory(service: Memory) -> None:
    """Make a service the one for plain memory."""
    set_memory_service(service)
    HOOKS.memory = service


# Which scope is current: the one in the context variable, unless a suspended generator opened it.
#
# A generator runs in its caller's context, so the scope that it opens stays in the context variable
# while it is suspended, and would own what its consumer creates. Therefore a scope that was opened
# by a generator remembers the generator's frame, and is current only while that frame runs (or
# awaits something: the tasks that it waits for inherit its scope).


T = TypeVar("T")

# The states of a scope. `enum scope_state_number` in src/shared/types.h has the same numbers.
UNOPENED: Final = 0
OPEN: Final = 1
CLOSED: Final = 2

# Flags of code objects, from Include/cpython/code.h.
_CO_GENERATOR: Final = 0x20
_CO_ITERABLE_COROUTINE: Final = 0x100  # types.coroutine: its yield is an await
_CO_ASYNC_GENERATOR: Final = 0x200
_ANY_GENERATOR: Final = _CO_GENERATOR | _CO_ASYNC_GENERATOR
_ENDED_FRAMES_KEEP_ITERATORS: Final = version_info >= (3, 14)
"""Whether the frame of a closed generator keeps the iterators of its loops alive."""
_RESUME: Final = dis.opmap["RESUME"]
_AFTER_AWAIT: Final = 3
"""The argument of the instruction RESUME after an await: see `_awaits`."""
# Functions that run a generator as a context manager, a fixture or a hook wrapper, by module and
# name. What runs while such a generator is suspended is its own block, not a consumer.
_BLOCK_DRIVERS: Final = frozenset(
    {
        ("contextlib", "__enter__"),
        ("contextlib", "__aenter__"),
        ("_pytest.fixtures", "call_fixture_func"),
        # These call wrappers of pytest hooks. pluggy renamed the module in version 1.7.
        ("pluggy._callers", "_multicall"),
        ("pluggy._callers", "run_old_style_hookwrapper"),
        ("pluggy._execution", "_multicall"),
        ("pluggy._execution", "run_old_style_hookwrapper"),
    }
)


def innermost_scope() -> ScopeState | None:
    """Return the innermost open scope of this context, or None: see `functions.current_scope`."""
    scope = CURRENT.get()
    if scope is None or scope._direct:
        return scope
    return resolve(scope)


def resolve(top: ScopeState) -> ScopeState | None:
    """Return the current scope, given the scope in the context variable.

    It is another one than `top` if `top` is closed or suspended, or was opened over a suspended
    scope that runs again.
    """
    node: ScopeState | None = top
    while node is not None:
        if _ENDED_FRAMES_KEEP_ITERATORS:
            forget_ended_generator(node)
        if node._state == OPEN and (node._frame is None or not suspended(node._frame)):
            if node._suspended:
                return _innermost_running(node)
            return node
        node = node._below
    return None


def forget_ended_generator(scope: ScopeState) -> None:
    """Drop a scope's reference to the frame of its generator, if the generator has ended.

    Since Python 3.14 the frame of a generator that was closed inside a loop keeps the loop's
    iterator alive, and the death of that iterator may be what closes the scope.
    """
    frame = scope._frame
    if scope._state == OPEN and frame is not None and getattr(frame, "f_generator", frame) is None:
        scope._frame = _ENDED_FRAME


def forget_ended_generators(scope: ScopeState) -> None:
    """Call `forget_ended_generator` for all scopes over a scope that is about to be left."""
    node = CURRENT.get()
    while node is not None and node is not scope:
        forget_ended_generator(node)
        node = node._below


def suspended_scopes(top: ScopeState | None, chosen: ScopeState | None) -> tuple[ScopeState, ...]:
    """Return the open scopes that are suspended now, innermost first.

    They may be resumed inside the scope that is being opened.

    Parameters
    ----------
    top : ScopeState or None
        The scope in the context variable, where the search begins.
    chosen : ScopeState or None
        The current scope, where the search ends.
    """
    skipped: dict[ScopeState, None] = {}
    node = top
    while node is not None:
        for scope in (*(() if node is chosen else (node,)), *node._suspended):
            if scope._state == OPEN and scope._frame is not None and suspended(scope._frame):
                skipped[scope] = None
        if node is chosen:
            break
        node = node._below
    return tuple(skipped)


def _innermost_running(node: ScopeState) -> ScopeState:
    """Return the current scope, given one that was opened over suspended scopes.

    Of those that run again, and the scope itself, it is the one whose generator's frame is the
    innermost on the stack.
    """
    running = {
        scope._frame: scope
        for scope in reversed(node._suspended)
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
    """Return the frame of the generator whose block enters a scope; None if no generator's does.

    `frame` is the frame that calls ``__enter__``. The result is None, too, for a generator that is
    a ``contextlib.contextmanager``, a pytest fixture or the wrapper of a pytest hook: while it is
    suspended, the block that it manages runs.
    """
    found: FrameType | None = frame
    while found is not None and not found.f_code.co_flags & _ANY_GENERATOR:
        if found.f_code.co_name not in ENTERING:
            return None
        found = found.f_back
    if found is None:
        return None
    driver = found.f_back
    if driver is not None and (driver.f_globals.get("__name__"), driver.f_code.co_name) in _BLOCK_DRIVERS:
        return generator_frame(driver.f_back) if driver.f_back is not None else None
    return found


def _frame_of_an_ended_generator() -> FrameType:
    def generator() -> Generator[FrameType, None, None]:
        yield _getframe()

    made = generator()
    frame = next(made)
    made.close()
    return frame


_ENDED_FRAME: Final = _frame_of_an_ended_generator()


def suspended(frame: FrameType) -> bool:
    """Return whether a generator's frame is suspended at a ``yield``, so that its consumer runs.

    False for a frame that runs, and for one that is suspended at an await.
    """
    if frame.f_back is not None:
        return False
    flags = frame.f_code.co_flags
    if flags & _CO_ITERABLE_COROUTINE:
        return False
    if not flags & _CO_ASYNC_GENERATOR:
        return True
    return not _awaits(frame.f_code, frame.f_lasti)


def _awaits(code: CodeType, last: int) -> bool:
    """Return whether a suspended frame is at an await, given the offset of its last instruction."""
    # The instruction after the one that suspended the frame is RESUME, whose argument distinguishes
    # a yield (1) from an await (3): https://docs.python.org/3.11/library/dis.html#opcode-RESUME
    bytecode = code.co_code
    for at in (last + 2, last):
        if 0 <= at < len(bytecode) and bytecode[at] == _RESUME:
            return bytecode[at + 1] & _AFTER_AWAIT == _AFTER_AWAIT
    return False


def _forget_inherited() -> None:
    set_current(None)


# A forked child never leaves the blocks of its parent.
at_forks(in_child=_forget_inherited)

# The stack of scopes in the context variable, where scopes are not simply nested.


def enter_among_generators(scope: ScopeState, below: ScopeState | None, frame: FrameType) -> None:
    """Set a scope's place in the stack when its block, or one around it, may be a generator's.

    Parameters
    ----------
    scope : ScopeState
        The scope that is entered.
    below : ScopeState or None
        The scope in the context variable.
    frame : FrameType
        The frame that calls ``__enter__``.
    """
    while below is not None and below._state == CLOSED:
        # A scope that was closed in another context is never left in this one, so it is dropped.
        # What the arena has to put back for it is put back when this scope is left.
        if below._served is not None:
            scope._served = below._served
        below = below._below
    scope._below = scope._outer = below
    if below is not None:
        # This drops closed scopes from the chain. Scopes that are opened and closed in alternation,
        # as by two loops in a zip, would make it ever longer.
        below._outer = below.outer
    if below is not None and not below._direct:
        scope._outer = resolve(below)
        scope._suspended = suspended_scopes(below, scope._outer)
    scope._frame = generator_frame(frame)
    scope._direct = scope._frame is None and not scope._suspended


def suspend_scope(scope: ScopeState) -> ScopeState | None:
    """Take a scope, and the scopes entered over it, off the context variable.

    Return the topmost of them, for `resume_scope`.
    """
    allow_recording(scope)
    top = CURRENT.get()
    node = top
    while node is not None and node is not scope:
        node = node._below
    if node is None:
        return None
    # In this order, so that an interrupt in between finds the scope still in the stack: leaving it
    # does both.
    if scope._served is not None:
        HOOKS.memory.left(scope)
    set_current(scope._below)
    return top


def resume_scope(scope: ScopeState, top: ScopeState | None) -> None:
    """Put a scope, and the scopes that were over it when it was suspended, on top of the stack.

    `top` is what `suspend_scope` returned.
    """
    if scope._state == CLOSED:
        return
    below = CURRENT.get()
    scope._below = below
    scope._outer = innermost_scope()
    set_current(scope if top is None else top)
    HOOKS.memory.entered(scope)
    limit_recording(scope)


def allow_recording(scope: ScopeState) -> None:
    """Let the thread record graphs while a function that a scope decorates is suspended.

    For scopes with ``graph="none"`` or ``"refuse"``.
    """
    if scope._limits_recording:
        for left in HOOKS.left:
            left(scope)


def limit_recording(scope: ScopeState) -> None:
    """Undo `allow_recording`."""
    if scope._limits_recording and scope._state == OPEN:
        for entered in HOOKS.entered:
            entered(scope)


@types.coroutine
def await_unlimited(scope: ScopeState, awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
    """Await, and let other tasks record graphs meanwhile: a scope limits only its own block."""
    steps: Any = awaitable.__await__()
    resume: Callable[..., Any] = steps.__next__
    # The next argument of `resume`, if any. It is popped, because an exception in a variable of
    # this frame would be in a cycle with it.
    given: list[Any] = []
    try:
        while True:
            try:
                waited = resume(given.pop()) if given else resume()
            except StopIteration as stop:
                return cast("T", stop.value)
            allow_recording(scope)
            try:
                sent = yield waited
            except GeneratorExit:
                limit_recording(scope)
                raise
            except BaseException as error:
                resume, given = steps.throw, [error]
            else:
                resume, given = (steps.__next__, []) if sent is None else (steps.send, [sent])
            limit_recording(scope)
    finally:
        if hasattr(steps, "close"):
            steps.close()


def suspend_by_hand(scope: ScopeState) -> None:
    """Mark a scope as one that its generator suspends and resumes itself: see `suspend_scope`.

    Its frame needs no looking at then.
    """
    scope._frame = None
    scope._direct = not scope._suspended
