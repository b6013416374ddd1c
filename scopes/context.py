"""What is called around a scope, and which scope is current.

A listener is called at births, moves and disposals: a detector is one. Without listeners this
costs nothing, because the compiled code looks at lists that are empty then.

Plain memory is that of arrays that no resource stands for, and is never invalidated. The arena,
which allocates it, registers itself here. A scope switches the arena on and off, knows what is
born in it by bytes and by owner, and gives it to the outer scope when it is closed.

Which scope is current depends on the context variable, on the generators that are suspended, and
on the stack of open scopes.
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
    "aside",
    "drive_by_hand",
    "enter_among_generators",
    "finish_releases",
    "innermost_scope",
    "let_ended_go",
    "remove_listener",
    "resolve",
    "resume_scope",
    "serve_plain_memory",
    "suspend_scope",
    "suspended",
]

# What is called in other rooms: listeners, hooks, and the service of plain memory.


class Listener(Protocol):
    """What a listener implements.

    Calls come in the thread of the event, before the verb returns; births of PyTorch's tensors
    later, and on any thread: when the next one is made or a scope ends.

    A listener must not raise, must not create or dispose resources, and must not keep a resource
    alive: an entry is a weak reference and may be kept.
    """

    def born(self, entry: Entry) -> None:
        """A resource was created (`entry.owner` owns it), or first met by ``attach``."""

    def moved(self, entry: Entry, source: ScopeState | None, target: ScopeState | None) -> None:
        """The owner of a resource changed; None is nobody."""

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
    """Call a listener no more, where it was added."""
    for place, each in enumerate(HOOKS.listeners):
        if each is listener:
            del HOOKS.listeners[place]
            return


class Witness(Protocol):
    """What a scope with ``escapes="raise"`` opens, and asks where something is held at its end."""

    def lines_of(self, entries: Sequence[Entry], /) -> list[str]:
        """Return for each resource the line where it was born; empty where that is unknown."""
        ...

    def holders_of(self, entries: Sequence[Entry], /) -> list[str]:
        """Return for each resource what holds it; empty where that is unknown."""
        ...

    def close(self) -> None:
        """Watch no more. Idempotent."""


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
    """What the allocator of plain memory implements: the arena.

    None of it may be called while another scope is being changed.
    """

    def entered(self, scope: ScopeState, /) -> object:
        """Serve the context as the scope wants it; its ``_served`` gets what is to be put back."""

    def left(self, scope: ScopeState, /) -> object:
        """Put back what served the context before."""

    def closed(self, scope: ScopeState, /) -> EscapedError | None:
        """Hand what the scope has in use to the outer one.

        Returns what a strict scope raises about it.

        Called once the scope has released what it owns. What a live resource shows goes to the
        owner of that one.
        """
        ...

    def use(self, scope: ScopeState, /) -> ArenaUse | None:
        """Return what is served for the scope; None where nothing is."""
        ...

    def nbytes(self, scope: ScopeState, /) -> int:
        """Return the scope's bytes in use, without what resources show, whoever owns these."""
        ...

    def is_plain(self, thing: object, /) -> bool:
        """Return whether an object is plain memory, whoever serves it."""
        ...

    def owner(self, thing: object, /) -> ScopeState | None:
        """Return the scope that owns the memory behind an object.

        None where nobody owns it, and for memory from elsewhere.
        """
        ...

    def is_served(self, thing: object, /) -> bool:
        """Return whether the memory behind an object is served here."""
        ...

    def move(self, thing: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
        """Change the owner of the memory behind an object if `source` owns it (None: nobody).

        Return whether it was changed. The memory behind a resource stays where anything else
        refers to it as well.
        """
        ...

    def explain(self, error: MemoryError, /) -> None:
        """Add to an error what is known of the budget that refused the memory."""

    def compact_copy(self, thing: object, /) -> object:
        """Return a copy of an array that pins more memory than it uses; any other one itself."""
        ...


@final
class _NoMemory:
    """Serves no memory, as long as nothing else does."""

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
    """What else is called, in the order in which it was added. The one instance is `HOOKS`.

    Attributes
    ----------
    listeners : list of Listener
        Hear of births, moves and disposals: see `add_listener`.
    entered : list of callable
        Called when a scope has been entered, in its thread.
    left : list of callable
        Called for each scope that was entered, when it is left or closed, before it releases what
        it owns. For a scope that limits what its block records, also when the block is left after
        the scope was closed; and both kinds of hooks are called around each suspension of what such
        a scope decorates.
    array_moved_out : list of callable
        Called with each plain array that is moved out of a scope, whoever has its memory. They do
        not raise.
    children : list of callable
        Asked for what an object holds that is no container of Python's, labelled as code would
        reach it; None is nothing to say.
    put_off : list of callable
        What releases have put off until all that belong together are done; called once: see
        `after_releases`.
    memory : Memory
        What serves plain memory: see `serve_plain_memory`.
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
        """Call a function too, if it is not called yet; the event is the name of an attribute."""
        functions: list[Any] = getattr(self, event)
        if function not in functions:
            functions.append(function)


HOOKS: Final = Hooks()


def after_releases(function: Callable[[], object]) -> None:
    """Call a function once, when all releases that belong together are done."""
    HOOKS.put_off.append(function)


def finish_releases() -> None:
    """Do what releases have put off."""
    put_off = HOOKS.put_off
    while put_off:
        # Taken out when it is done: after an interrupt it is done again.
        put_off[-1]()
        del put_off[-1:]


def serve_plain_memory(service: Memory) -> None:
    """Have a service answer for plain memory from now on, in the place of any other."""
    set_memory_service(service)
    HOOKS.memory = service


# Which scope is current: a context variable, read so that a suspended generator's scope is passed
# over.
#
# A generator runs in its caller's context, so the scope that it opens stays in the context variable
# while it is suspended, and would capture what its consumer creates. A scope that was opened by a
# generator therefore remembers that generator's frame, and counts as current only while the frame
# is running (or awaits something: the tasks it waits for inherit its scope).


T = TypeVar("T")

UNOPENED: Final = 0
OPEN: Final = 1
CLOSED: Final = 2
"""The states of a scope."""

_CO_GENERATOR: Final = 0x20
_CO_ITERABLE_COROUTINE: Final = 0x100  # types.coroutine: its yield is an await
_CO_ASYNC_GENERATOR: Final = 0x200
_ANY_GENERATOR: Final = _CO_GENERATOR | _CO_ASYNC_GENERATOR
_FRAMES_STAY: Final = version_info >= (3, 14)
"""Whether the frame of a closed generator has what its loop went over: see `let_go_of_ended`."""
_RESUME: Final = dis.opmap["RESUME"]
_AFTER_AWAIT: Final = 3
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


def innermost_scope() -> ScopeState | None:
    """Return the innermost open scope of this context, or None: see `functions.current_scope`."""
    scope = CURRENT.get()
    if scope is None or scope._direct:
        return scope
    return resolve(scope)


def resolve(top: ScopeState) -> ScopeState | None:
    """Return the current scope, which may be another than the innermost one that was entered.

    `top` is that one: it is closed or suspended, or was opened over a suspended one.
    """
    node: ScopeState | None = top
    while node is not None:
        if _FRAMES_STAY:
            let_go_of_ended(node)
        if node._state == OPEN and (node._frame is None or not suspended(node._frame)):
            if node._suspended:
                return _innermost_running(node)
            return node
        node = node._below
    return None


def let_go_of_ended(scope: ScopeState) -> None:
    """Let the frame of a generator go that has ended, with what its loop went over.

    Since Python 3.14 a generator that is closed in a loop leaves that in its frame, which is there
    as long as somebody has it; and what the loop went over may be what closes the scope.
    """
    frame = scope._frame
    if scope._state == OPEN and frame is not None and getattr(frame, "f_generator", frame) is None:
        scope._frame = _ENDED


def let_ended_go(scope: ScopeState) -> None:
    """Do so with what lies over a scope, before that is left."""
    node = CURRENT.get()
    while node is not None and node is not scope:
        let_go_of_ended(node)
        node = node._below


def suspended_scopes(top: ScopeState | None, chosen: ScopeState | None) -> tuple[ScopeState, ...]:
    """Return the open scopes that are suspended now, innermost first.

    They may be resumed inside the scope that is being opened.
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
    """Return the one that runs innermost, of a scope and those suspended when it was opened."""
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
    """Return the frame of the generator whose block enters a scope; None for another block.

    `frame` is the one that enters it.

    A generator made by ``contextlib.contextmanager``, a pytest fixture and the wrapper of a pytest
    hook are None too: while they are suspended, the block that they manage runs.
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


_ENDED: Final = _frame_of_an_ended_generator()


def suspended(frame: FrameType) -> bool:
    """Return whether a generator's frame is suspended at a ``yield``, and not at an await.

    Its consumer runs then.
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
    """Enter a scope the slow way: its block, or one around it, is a generator's."""
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
        scope._suspended = suspended_scopes(below, scope._outer)
    scope._frame = generator_frame(frame)
    scope._direct = scope._frame is None and not scope._suspended


def suspend_scope(scope: ScopeState) -> ScopeState | None:
    """Take a scope, and what was entered over it, off the context variable.

    Return what `resume_scope` wants.
    """
    step_aside(scope)
    top = CURRENT.get()
    node = top
    while node is not None and node is not scope:
        node = node._below
    if node is None:
        return None
    # In this order: where an interrupt comes between, the scope is still to be left, which does
    # both.
    if scope._served is not None:
        HOOKS.memory.left(scope)
    set_current(scope._below)
    return top


def resume_scope(scope: ScopeState, top: ScopeState | None) -> None:
    """Put a scope, and what was entered over it when it was suspended, over the current scope."""
    if scope._state == CLOSED:
        return
    below = CURRENT.get()
    scope._below = below
    scope._outer = innermost_scope()
    set_current(scope if top is None else top)
    HOOKS.memory.entered(scope)
    step_back(scope)


def step_aside(scope: ScopeState) -> None:
    """Let others record graphs on this thread while what a scope decorates is suspended."""
    if scope._limits_recording:
        for left in HOOKS.left:
            left(scope)


def step_back(scope: ScopeState) -> None:
    """Undo `step_aside`."""
    if scope._limits_recording and scope._state == OPEN:
        for entered in HOOKS.entered:
            entered(scope)


@types.coroutine
def aside(scope: ScopeState, awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
    """Wait for an awaitable, and let other tasks record graphs meanwhile."""
    steps: Any = awaitable.__await__()
    resume: Callable[..., Any] = steps.__next__
    # Popped before it is passed on: an exception that stayed here would be in a cycle with this
    # frame.
    given: list[Any] = []
    try:
        while True:
            try:
                waited = resume(given.pop()) if given else resume()
            except StopIteration as stop:
                return cast("T", stop.value)
            step_aside(scope)
            try:
                sent = yield waited
            except GeneratorExit:
                step_back(scope)
                raise
            except BaseException as error:
                resume, given = steps.throw, [error]
            else:
                resume, given = (steps.__next__, []) if sent is None else (steps.send, [sent])
            step_back(scope)
    finally:
        if hasattr(steps, "close"):
            steps.close()


def drive_by_hand(scope: ScopeState) -> None:
    """Leave it to the generator that entered a scope to take it off the stack while suspended."""
    scope._frame = None
    scope._direct = not scope._suspended
