"""The arena's compiled part: a memory handler for NumPy (NEP 49) whose blocks know their scope.

Importing it raises ImportError where this NumPy is another one than it knows. Elsewhere it is imported as
`extension.ARENA`.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, Final, ParamSpec, TypeVar, final

from ...scopes.compiled import ScopeState

P = ParamSpec("P")
R = TypeVar("R")

debug: Final[bool]
"""Whether blocks are poisoned and guarded, by ``DISPOSESCOPE_ARENA_DEBUG=1`` when the process started."""

@final
class Account:
    """What a scope has in use, as the scope holds it."""

def set_tie_types(types: tuple[type, ...], /) -> None:
    """Name the types of objects that stand between an array and the one it shares memory with, as their ``base``."""

def record_into(log: object, /) -> None:
    """Record births of blocks in a log of births, given its capsule, and deaths of those; None: no births any more.

    Contexts that leave their scope are served on while there is a log.
    """

def swap_handler(handler: object, /) -> object:
    """Have another handler, or the arena (None), serve this context; returns the one before, None for the arena."""

def record_buffers(function: Callable[[Any], object] | None, /) -> bool:
    """Call a function with each array that is made over memory that NumPy did not allocate; None: no more.

    Returns False, and changes nothing, where this NumPy makes them in another way.
    """

def block(array: object, /) -> tuple[int, int] | None:
    """Address and bytes of the block behind an array; None where its memory is no block of the arena.

    0 bytes where the array that owns the memory has no elements, although its block counts as one of 1 byte.
    """

def enter(scope: ScopeState, /) -> None:
    """Serve this context as a scope wants it; its field ``_served`` gets the handler before."""

def leave(scope: ScopeState, /) -> None:
    """Put back what ``_served`` of a scope holds; NumPy's own handler where it holds nothing."""

def reset() -> None:
    """Let NumPy's own handler serve this context, if the arena does."""

def served(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function with the arena serving this context."""

def close_account(scope: ScopeState, outer: ScopeState | None, /) -> tuple[int, int] | None:
    """Hand what a scope has in use to another, or to nobody: how many blocks and bytes; None if nothing was born."""

def figures(scope: ScopeState, /) -> tuple[int, int, int, int, int, int, int, int]:
    """Live blocks, live and peak bytes, hits, misses, escaped blocks and bytes, charged bytes of a scope."""

def live_nbytes(scope: ScopeState, /) -> int:
    """Return the bytes that a scope has in use."""

def owner(array: object, /) -> ScopeState | None:
    """Return the scope that owns the block behind an array, or at an address; None for nobody and for other memory."""

def escaped(address: int, /) -> bool:
    """Return whether the scope in which a block was born, or to which it was moved, has been closed.

    False for an address at which the birth log has no block.
    """

def is_served(array: object, /) -> bool:
    """Return whether the memory behind an array, or at an address, is a block of the arena."""

def move(array: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Give the block behind an array, or at an address, to another scope, or to nobody, where `source` owns it."""

def move_alone(array: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Move the block as `move` does, if only the array refers to its memory.

    Only a tensor and the caller may refer to the array.
    """

def charge(scope: ScopeState, nbytes: int, /) -> Account | bool | None:
    """Count bytes from elsewhere against the budgets around a scope.

    Returns what `discharge` wants, False where a budget refuses, None where there is no budget.
    """

def discharge(account: Account, nbytes: int, /) -> None:
    """Take bytes off again."""

def last_refusal() -> tuple[ScopeState | None, int, int, int] | None:
    """Return the last refusal of a budget on this thread, and forget it: scope, budget, bytes in use and requested."""

def sites(scope: ScopeState | None, /) -> list[tuple[tuple[CodeType, int] | None, int]]:
    """Return birth mark and bytes of the recorded blocks that a scope owns or has in its budget; None: of all."""

def statistics() -> tuple[int, int, int, int, int, int, int, int]:
    """Live blocks, live, peak, cached and mapped bytes, hits, misses, escapes."""

def empty_cache() -> None:
    """Return what is cached to the system."""

def pass_time(ms: int, /) -> None:
    """Let the clock of the cache go forward by some milliseconds, for tests."""

def decay(*ignored: object) -> None:
    """Let the cache forget what has not been needed lately; a callback of the garbage collector."""

def address(array: object, /) -> int:
    """Return where the elements of an array begin."""
