"""The compiled part of the arena: a memory handler for NumPy (NEP 49) with accounts of scopes.

Importing it raises ImportError for a NumPy that it does not know. Other modules import it as
`extension.ARENA`. A *block* is the memory of one array; an `Account` has the blocks of a scope.
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
    """The blocks and bytes that a scope has in use. The scope holds it as `_account`."""

@final
class Slab:
    """A piece of memory from the system, from which a plan serves the blocks of passes.

    The memory lives as long as this object and the last block in it. Without this object, pages
    that no block in use has are given back to the system. With `verified` dead bytes are poisoned,
    and blocks have guard bytes behind them.
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
        """The first stray write that was found, and its offset; only with `verified`."""

@final
class PassPlan:
    """The births of a pass in their order, and the offset of each block in a slab.

    A slot has the number of a trace, the most bytes that fit, and the offset, a multiple of 64; the
    offset -1 means that the pool serves the birth. A trace has code and instruction of the frames
    that a birth must have, innermost first, at most 16; it is empty if no Python code runs there.
    """

    def __new__(
        cls,
        traces: tuple[tuple[tuple[CodeType, int], ...], ...],
        slots: tuple[tuple[int, int, int], ...],
        verified: bool = False,
    ) -> Self: ...
    @property
    def height(self) -> int:
        """The bytes of the smallest slab that it fits into."""

    def exclude(self, slot: int, /) -> None:
        """Have the pool serve the births of a slot from now on."""

@final
class PassTotals:
    """The sums over passes that have ended, on any thread."""

    def figures(self) -> tuple[int, int, int, int]:
        """Return how many passes there were, and their hits, misses and escaped blocks.

        Hits are births that a slab has served, and escaped blocks were in use at the end.
        """

@final
class Pass:
    """A recording of births and deaths of blocks in a scope.

    With a plan, a slab serves the blocks. A plan, or a slab, can serve only one open pass at a
    time.
    """

    def __new__(cls, plan: PassPlan | None = None, slab: Slab | None = None, most_births: int = 1 << 24) -> Self: ...
    @property
    def time(self) -> int:
        """How many births are recorded; no more than `most_births`."""

    @property
    def peak_nbytes(self) -> int:
        """The most bytes of recorded births that were in use at once."""

    @property
    def misses(self) -> int:
        """How many births the plan has a slot for, but the pool has served."""

    def begin(self, scope: ScopeState | None, /) -> None:
        """Record the births in an open scope, and in scopes that are opened inside it.

        None stands for all births, in scopes and outside.
        """

    def end(self, totals: PassTotals = ..., /) -> int:
        """End the recording. Return how many blocks of the slab are in use.

        The end of an open pass counts in the totals, where they are given.
        """

    def note(self, nbytes: int, /) -> int | None:
        """Record memory of another library, and return the number of its birth.

        None after the end, and if there is no room for another birth.
        """

    def note_death(self, birth: int, /) -> None:
        """Record that noted memory is freed. Does nothing after the end."""

    def note_saved(self, birth: int, /) -> None:
        """Record that a graph may have saved noted memory. Does nothing after the end."""

    def births(self) -> list[tuple[int, int, int, int, tuple[tuple[CodeType, int], ...]]]:
        """Return bytes, death, outcome, slot and places of each birth; only after the end.

        The death is the number of births before it; -1 if the block was in use at the end. Outcomes
        are those of `leaks.peaks.recording`. The slot is -1 if there is none. The places are the
        frames at the birth, innermost first, at most 16; empty if the slab served the birth.
        """

def set_base_types(types: tuple[type, ...], /) -> None:
    """Set the types of objects between an array and the array whose memory it shares.

    Such an object has the next one in the chain as its attribute ``base``.
    """

def record_into(log: object, /) -> None:
    """Record births and deaths of blocks in a log of births, given its capsule.

    None ends that. While there is a log, the arena goes on serving a context that leaves its scope.
    """

def swap_handler(handler: object, /) -> object:
    """Set the handler of this context, and return the one before. None stands for the arena."""

def record_buffers(function: Callable[[Any], object] | None, /) -> bool:
    """Call a function with each new array over memory that NumPy did not allocate; None ends that.

    Returns False, and changes nothing, if NumPy's functions are not as expected.
    """

def block(array: object, /) -> tuple[int, int] | None:
    """Return address and bytes of the block behind an array; None if it is not the arena's.

    0 bytes if the array that owns the memory has no elements, although its block has 1 byte.
    """

def enter(scope: ScopeState, /) -> None:
    """Set the handler of this context as a scope's options say.

    The field ``_served`` of the scope gets the former handler, if that was another one.
    """

def leave(scope: ScopeState, /) -> None:
    """Put back the handler in ``_served`` of a scope; NumPy's own handler if it is None."""

def reset() -> None:
    """Let NumPy's own handler serve this context, if the arena does."""

def served(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function with the arena serving this context."""

def close_account(scope: ScopeState, outer: ScopeState | None, keeps: bool, /) -> tuple[int, int] | None:
    """Give the blocks that a scope has in use to its outer scope, or to nobody.

    Returns their number and bytes; None if the scope has no account. `keeps` says that the scope
    has ``escapes="keep"``, so that none of these blocks has `escaped`.
    """

def figures(scope: ScopeState, /) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the figures of a scope's account.

    These are live blocks, live and peak bytes, hits, misses, escaped blocks and bytes, and charged
    bytes.
    """

def live_nbytes(scope: ScopeState, /) -> int:
    """Return the bytes that a scope has in use."""

def owner(array: object, /) -> ScopeState | None:
    """Return the scope that owns the block behind an array, or at an address.

    None for an unowned block, and for other memory.
    """

def escaped(address: int, /) -> bool:
    """Return whether a block has outlived its scope, which did not keep it.

    Its scope is the one in which it was born or to which it was moved last; a scope with
    ``escapes="keep"`` moves its blocks to the outer scope when it ends. False for an address at
    which the birth log has no block.
    """

def is_served(array: object, /) -> bool:
    """Return whether the memory behind an array, or at an address, is a block of the arena."""

def move(array: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Give the block behind an array, or at an address, to another scope, or to nobody.

    Returns False, and changes nothing, if `source` does not own it.
    """

def move_unshared(array: object, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Do what `move` does, if nothing but the array refers to its memory.

    The array may have two references: from a Tensor and from the caller.
    """

def charge(scope: ScopeState, nbytes: int, /) -> Account | bool | None:
    """Count bytes of another library's memory against the budgets of a scope and its outer scopes.

    Returns the account for `discharge`; False if a budget refuses; None if there is no budget.
    """

def discharge(account: Account, nbytes: int, /) -> None:
    """Stop counting bytes that `charge` has counted."""

def last_refusal() -> tuple[ScopeState | None, int, int, int] | None:
    """Return the last refusal of a budget on this thread, and forget it; None if there is none.

    It is the scope, its budget, the bytes in use then, and the bytes requested.
    """

def sites(scope: ScopeState | None, /) -> list[tuple[tuple[CodeType, int] | None, int]]:
    """Return birth mark and bytes of recorded blocks.

    These are the blocks that a scope owns or has in its budget; all recorded blocks for None.
    """

def statistics() -> tuple[int, int, int, int, int, int, int, int]:
    """Return live blocks, live, peak, cached and mapped bytes, hits, misses and escapes."""

def empty_cache() -> None:
    """Return all cached memory to the system."""

def advance_clock(ms: int, /) -> None:
    """Advance the clock of the cache by some milliseconds, for tests."""

def decay(*ignored: object) -> None:
    """Return cached memory that was not needed lately. Also a callback of the garbage collector."""

def address(array: object, /) -> int:
    """Return the address of the first element of an array."""
