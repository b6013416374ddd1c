"""The arena's compiled part: a memory handler for NumPy (NEP 49) whose blocks know their scope.

Importing it raises ImportError where this NumPy is another one than it knows. Other modules import
it as `extension.ARENA`.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, Final, ParamSpec, Self, TypeVar, final

from ...scopes.compiled import ScopeState

P = ParamSpec("P")
R = TypeVar("R")

debug: Final[bool]
"""Whether blocks are poisoned and guarded: ``DISPOSESCOPE_ARENA_DEBUG=1`` was set at the import."""

@final
class Account:
    """What a scope has in use, as the scope holds it."""

@final
class Slab:
    """A piece of memory from the system, from which the blocks of passes are served as a plan says.

    What is in use in it stays when the object goes: the memory lives as long as its last block.
    With `verified` dead bytes are poisoned, and blocks have guard bytes behind them.
    """

    def __new__(cls, nbytes: int, verified: bool = False) -> Self: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def live_blocks(self) -> int: ...
    @property
    def live_nbytes(self) -> int: ...
    @property
    def fault(self) -> tuple[str, int] | None:
        """What was found wrong with bytes first, and at which offset; only with `verified`."""

    def abandon(self) -> None:
        """Serve nothing from it any more, and give its pages back to the system.

        Those in which a block is in use stay.
        """

@final
class PassPlan:
    """The births of a pass in their order, and where the block of each lies in a slab.

    A slot is the innermost code and instruction at the birth, the most bytes that fit, and the
    offset, a multiple of 64; -1 where the pool shall serve it.
    """

    def __new__(cls, slots: list[tuple[CodeType | None, int, int, int]], verified: bool = False) -> Self: ...
    @property
    def height(self) -> int:
        """The bytes of a slab that it fits."""

    def exclude(self, slot: int, /) -> None:
        """Have the pool serve a slot from now on."""

@final
class PassTotals:
    """The sums over passes that have ended, on any thread."""

    def figures(self) -> tuple[int, int, int, int]:
        """Return how many passes there were, and their hits, misses and escaped blocks.

        Hits are births that a slab has served, and escaped blocks were in use at the end.
        """

@final
class Pass:
    """A recording of what is born and freed in a scope.

    Where there is a plan, a slab serves the blocks. A plan, and a slab, serve one open pass at a
    time.
    """

    def __new__(cls, plan: PassPlan | None = None, slab: Slab | None = None, most_births: int = 1 << 24) -> Self: ...
    @property
    def time(self) -> int:
        """How many births are recorded; no more than `most_births`."""

    @property
    def peak_nbytes(self) -> int:
        """The most bytes of these births that were in use at once."""

    @property
    def misses(self) -> int:
        """How many births it should have served, and has not."""

    def begin(self, scope: ScopeState | None, /) -> None:
        """Record the births in a scope that has been entered, and in scopes that are opened inside.

        None stands for all scopes and for what is outside of them.
        """

    def end(self, totals: PassTotals = ..., /) -> int:
        """Record no more; returns how many blocks of the slab are in use.

        The end of an open pass counts in the totals, where they are given.
        """

    def note(self, nbytes: int, /) -> int | None:
        """Record memory of another library, and return the number of its birth.

        None after the end, and where there is no room for another birth.
        """

    def note_death(self, birth: int, /) -> None:
        """Record that what was noted is freed; does nothing after the end."""

    def note_saved(self, birth: int, /) -> None:
        """Record that a graph may have saved what was noted; does nothing after the end."""

    def births(self) -> list[tuple[int, int, int, int, tuple[tuple[CodeType, int], ...]]]:
        """Return bytes, death, outcome, slot and places of each birth; only after the end.

        The death is the number of births before it; -1 where the block was in use at the end.
        Outcomes are those of `leaks.peaks.recording`. The slot is -1 for none. The places are the
        frames at the birth, innermost first, at most 16; none where the slab served it.
        """

def set_base_types(types: tuple[type, ...], /) -> None:
    """Name the types of objects that stand between an array and the one it shares memory with.

    Each of them has the next one as its ``base``.
    """

def record_into(log: object, /) -> None:
    """Record births of blocks, and their deaths, in a log of births, given its capsule.

    Given None, record no births any more. Contexts that leave their scope are served on while there
    is a log.
    """

def swap_handler(handler: object, /) -> object:
    """Have another handler serve this context, and return the one before; None is the arena."""

def record_buffers(function: Callable[[Any], object] | None, /) -> bool:
    """Call a function with each array made over memory that NumPy did not allocate; None: no more.

    Returns False, and changes nothing, where this NumPy makes them in another way.
    """

def block(array: object, /) -> tuple[int, int] | None:
    """Return address and bytes of the block behind an array; None where it has none of the arena.

    0 bytes where the array that owns the memory has no elements, although its block counts as one
    of 1 byte.
    """

def enter(scope: ScopeState, /) -> None:
    """Serve this context as a scope wants it; its field ``_served`` gets the handler before."""

def leave(scope: ScopeState, /) -> None:
    """Put back what ``_served`` of a scope holds; NumPy's own handler where it holds nothing."""

def reset() -> None:
    """Let NumPy's own handler serve this context, if the arena does."""

def served(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function with the arena serving this context."""

def close_account(scope: ScopeState, outer: ScopeState | None, keeps: bool, /) -> tuple[int, int] | None:
    """Hand what a scope has in use to its outer scope, or to nobody.

    Returns how many blocks and bytes that is; None if nothing was born. `keeps` says that the scope
    keeps what is held, so that nothing of it has `escaped`.
    """

def figures(scope: ScopeState, /) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the figures of a scope.

    Live blocks, live and peak bytes, hits, misses, escaped blocks and bytes, charged bytes.
    """

def live_nbytes(scope: ScopeState, /) -> int:
    """Return the bytes that a scope has in use."""

def owner(array: object, /) -> ScopeState | None:
    """Return the scope that owns the block behind an array, or at an address.

    None where nobody owns it, and for other memory.
    """

def escaped(address: int, /) -> bool:
    """Return whether the scope that a block belonged to has been closed and keeps nothing.

    It belonged to the scope in which it was born, or to which it was moved. Where that scope kept
    the block, the same is asked of the scope that it handed the block to. False for an address at
    which the birth log has no block.
    """

def is_served(array: object, /) -> bool:
    """Return whether the memory behind an array, or at an address, is a block of the arena."""

def move(array: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Give the block behind an array, or at an address, to another scope, or to nobody.

    Returns False, and changes nothing, where `source` does not own it.
    """

def move_unshared(array: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
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
    """Return the last refusal of a budget on this thread, and forget it.

    It is the scope, its budget, the bytes in use and those requested; None where there is none.
    """

def sites(scope: ScopeState | None, /) -> list[tuple[tuple[CodeType, int] | None, int]]:
    """Return birth mark and bytes of the recorded blocks that a scope owns or has in its budget.

    Of all recorded blocks where the scope is None.
    """

def statistics() -> tuple[int, int, int, int, int, int, int, int]:
    """Live blocks, live, peak, cached and mapped bytes, hits, misses, escapes."""

def empty_cache() -> None:
    """Return what is cached to the system."""

def advance_clock(ms: int, /) -> None:
    """Let the clock of the cache go forward by some milliseconds, for tests."""

def decay(*ignored: object) -> None:
    """Let the cache forget what has not been needed lately; a callback of the garbage collector."""

def address(array: object, /) -> int:
    """Return where the elements of an array begin."""
