"""The arena's compiled part: a memory handler for NumPy (NEP 49) whose blocks know their scope.

Absent where it could not be built, or where this NumPy is another one than it knows; then importing it raises
ImportError. Ask `extension.ARENA` instead of importing it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, Final, ParamSpec, TypeVar, final

from ...scopes.scope import DisposeScope

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H")

ALIGNMENT: Final[int]
"""Every block begins at a multiple of it."""

debug: Final[bool]
"""Whether blocks are poisoned and guarded, by ``DISPOSESCOPE_ARENA_DEBUG=1`` when the process started."""

@final
class Account:
    """What a scope has in use, as the scope holds it."""

def bind(
    current: ContextVar[DisposeScope | None],
    scope_type: type[DisposeScope],
    resolve: Callable[[DisposeScope], DisposeScope | None],
    mark_of: Callable[[FrameType | None], tuple[CodeType, int] | None],
    listeners: list[Any],
    ties: tuple[type, ...],
    changes: object,
    /,
) -> None:
    """Learn where scopes are found, what tells the current one where that is not plain, and where sites come from.

    The last one is the capsule of the number of changes of the current scopes, or None.
    """

def bind_log(log: object, /) -> None:
    """Log blocks in the birth log, given its capsule, whenever that is open. Called once, when it is loaded."""

def swap_handler(handler: object, /) -> object:
    """Have another handler, or the arena (None), serve this context; returns the one before, None for the arena."""

def watch(wanted: bool, /) -> None:
    """Whether contexts that leave their scope are served on, for a leak detector."""

def block(array: object, /) -> tuple[int, int] | None:
    """Address and bytes of the block behind an array; None where its memory is no block of the arena.

    0 bytes where the array that owns the memory has no elements, although its block counts as one of 1 byte.
    """

def tellers(
    handles: type[H],
    slot: object,
    storages: Callable[[H], tuple[tuple[int, int], ...]],
    layout: Callable[[H], tuple[tuple[int, ...], str, int] | None],
    known: dict[Any, tuple[str, int]],
    /,
) -> tuple[
    Callable[[H], tuple[tuple[int, int], ...]],
    Callable[[H], tuple[tuple[int, ...], str, int] | None],
    Callable[[H, DisposeScope | None, DisposeScope | None], bool],
]:
    """The two functions compiled: what tells the storages and the layout of a handle by the array in a slot of it.

    They ask those that they are given of memory that is no block of the arena, and of types of elements whose name and
    bytes are not yet known. The third one does what `move` does, for the block behind a handle, and only where nothing
    else refers to that memory.
    """

def enter(scope: DisposeScope, /) -> None:
    """Serve this context as a scope wants it; its slot ``_served`` gets the handler before."""

def leave(scope: DisposeScope, /) -> None:
    """Put back what ``_served`` of a scope holds; NumPy's own handler where it holds nothing."""

def reset() -> None:
    """Let NumPy's own handler serve this context, if the arena does."""

def served(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function with the arena serving this context."""

def unserved(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function with NumPy's own handler where the arena serves this context; another one stays."""

def close_account(scope: DisposeScope, outer: DisposeScope | None, /) -> tuple[int, int] | None:
    """Hand what a scope has in use to another, or to nobody: how many blocks and bytes; None if nothing was born."""

def figures(scope: DisposeScope, /) -> tuple[int, int, int, int, int, int, int, int]:
    """Live blocks, live and peak bytes, hits, misses, escaped blocks and bytes, charged bytes of a scope."""

def live_nbytes(scope: DisposeScope, /) -> int:
    """The bytes that a scope has in use."""

def owner(array: object, /) -> DisposeScope | None:
    """The scope that owns the block behind an array; None where it is nobody's or no block of the arena."""

def escaped(address: int, /) -> bool:
    """Whether the scope in which a block was born, or to which it was moved, has been closed.

    False for an address at which the birth log has no block.
    """

def is_served(array: object, /) -> bool:
    """Whether the memory behind an array is a block of the arena."""

def move(array: object, source: DisposeScope | None, target: DisposeScope | None, /) -> bool:
    """Give the block behind an array to another scope, or to nobody, where `source` (or nobody) owns it."""

def charge(scope: DisposeScope, nbytes: int, /) -> Account | bool | None:
    """Count bytes from elsewhere against the budgets around a scope.

    Returns what `discharge` wants, False where a budget refuses, None where there is no budget.
    """

def discharge(account: Account, nbytes: int, /) -> None:
    """Take bytes off again."""

def last_refusal() -> tuple[DisposeScope | None, int, int, int] | None:
    """The last refusal of a budget on this thread: scope, budget, bytes in use, bytes requested. Forgets it."""

def sites(scope: DisposeScope | None, /) -> list[tuple[tuple[CodeType, int] | None, int]]:
    """Birth mark and bytes of the recorded blocks that a scope owns, or that count against its budget; None: of all."""

def statistics() -> tuple[int, int, int, int, int, int, int, int]:
    """Live blocks, live, peak, cached and mapped bytes, hits, misses, escapes."""

def empty_cache() -> None:
    """Return what is cached to the system."""

def pass_time(ms: int, /) -> None:
    """Let the clock of the cache go forward by some milliseconds, for tests."""

def decay(*ignored: object) -> None:
    """Let the cache forget what has not been needed lately; a callback of the garbage collector."""

def address(array: object, /) -> int:
    """Where the elements of an array begin."""
