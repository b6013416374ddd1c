"""The log of births, compiled: what is known of all that was seen to be born and still exists."""

from collections.abc import Callable
from types import CodeType
from typing import Any, Final, NamedTuple, final
from weakref import ref

from ...scopes.identity import Entry
from ...scopes.kinds import Kind

class SiteRow(NamedTuple):
    """What is known of a site.

    Attributes
    ----------
    kind, device : str
        Of what is born there.
    op : str or None
        The call that makes it.
    places : tuple of (CodeType, int)
        Code objects and instructions, innermost first.
    births : int
        How many were born.
    live : float
        How many live; an estimate where births are sampled.
    nbytes, peak_nbytes : int
        Their bytes now, and the most at once.
    last_birth, last_birth_before_death : int
        The numbers of the last birth there, and of the last birth anywhere before one of them died.
    """

    kind: str
    device: str
    op: str | None
    places: tuple[tuple[CodeType, int], ...]
    births: int
    live: float
    nbytes: int
    peak_nbytes: int
    last_birth: int
    last_birth_before_death: int

@final
class Row:
    """What is known of a birth.

    Attributes
    ----------
    site : int
        The number of its site.
    nbytes : int
        Its bytes.
    number : int
        Its own number: births are numbered in their order.
    closings : int
        How many scopes had been closed until then.
    at_s : float
        When, by ``time.monotonic()``.
    scope : str or None
        The name of the scope: ``""`` for one without a name, None outside every scope.
    weight : float
        How many births it stands for: 1, or more where births are sampled.
    """

    @property
    def site(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def closings(self) -> int: ...
    @property
    def at_s(self) -> float: ...
    @property
    def scope(self) -> str | None: ...
    @property
    def weight(self) -> float: ...

@final
class MemoryReference(ref[Any]):
    """A weak reference to what stands for memory whose birth is known. Compared by identity."""

@final
class Log:
    """What is known of all that was seen to be born and still exists.

    The one instance is `LOG`.

    Attributes
    ----------
    c_api : object
        A capsule for compiled code that records births: see ``scopes/src/shared/birth_log.h``.
    disposals : dict
        What somebody keeps of disposed resources, by their entries; the log takes out those that
        have died.
    """

    @property
    def c_api(self) -> object: ...
    @property
    def disposals(self) -> dict[Entry, Any]: ...

    # ------------------------------------------------------------------ the log as a whole

    def describe_kind(
        self,
        kind: Kind,
        name: str,
        weigh: Callable[[Any], int] | None,
        memory: Callable[[Any], object] | None,
        device: str,
        backed: bool,
        /,
    ) -> None:
        """Register what the log records of births of a kind, which lives as long as the process.

        Parameters
        ----------
        kind, name : Kind, str
            The kind, and the name that reports use for it.
        weigh : callable, optional
            Returns the bytes of an instance, in one quick call. Left out, they are those of its
            storages.
        memory : callable, optional
            Returns the object that stands for the memory of an instance, whose birth is recorded
            instead.
        device : str
            The device of all instances; used with `weigh` alone.
        backed : bool
            Whether its bytes are those of memory that is seen to be born by itself.
        """

    def open(self, frames: int, sample_nbytes: int, /) -> None:
        """Record births from now on, with so many frames; every one, or one for so many bytes.

        Where none were recorded, `series` begin anew.
        """

    def close(self) -> None:
        """Record no more births. Deaths of what is known are still recorded."""

    def clear(self) -> None:
        """Forget everything."""

    def cleared_at(self) -> int:
        """Return the number of the last birth that was forgotten with everything else."""

    def openings(self) -> int:
        """Return how often births began to be recorded."""

    def counts(self) -> tuple[int, int, int, int]:
        """Return what was counted until now.

        Returns
        -------
        tuple of int
            The number of the last birth, passes that are over, scopes that were closed, and the
            births that are known.
        """

    # ------------------------------------------------------------------ births and deaths

    def born(self, entry: Entry, /) -> None:
        """Record the birth of a resource."""

    def died(self, entry: Entry, /) -> None:
        """Forget a resource."""

    def released(self, entry: Entry, /) -> bool:
        """Record that a resource was disposed: it has no bytes now. Return whether it is known."""

    def record_memory(self, anchor: object, op: str | None, nbytes: int, kind: str, device: str | None, /) -> bool:
        """Record, once, the birth of memory that dies with `anchor`. Return whether it is known."""

    def record_owner(self, owner: object, op: str | None, kind: str, device: str, frames: int, /) -> bool:
        """Record the birth of what owns memory, at the line outside of so many innermost frames.

        It is recorded also where births are sampled. Return whether it is known now.
        """

    def exclude(self, anchor: object, /) -> bool:
        """Stop reporting some memory. Return whether it was reported until now."""

    def escape(self, memory: object, /) -> None:
        """Record that the tensor of some memory was disposed.

        The memory is given by what stands for it, or by the address of a block.
        """

    def let_out(self, memory: object, /) -> None:
        """Record that some memory was moved out under another name than that of its tensor.

        It does not escape then.
        """

    def escapes(self) -> int:
        """Return how often `escape` was called for memory that is known."""

    def has_escaped(self, memory: object, /) -> bool:
        """Return whether the tensor of some memory was disposed, and the memory not moved out."""

    # ------------------------------------------------------------------ what is known of births

    def recall(self, key: Entry, /) -> Row | None:
        """Return what is known of a resource."""

    def recall_block(self, address: int, /) -> Row | None:
        """Return what is known of a block of the arena."""

    def recall_memory(self, anchor: object, /) -> Row | None:
        """Return what is known of memory."""

    def is_in_use(self, address: int, number: int, /) -> bool:
        """Return whether a block of the arena is still the one of that birth."""

    def count_elsewhere(self, address: int, is_elsewhere: bool, /) -> None:
        """Let the bytes of a block of the arena count for its device, or leave them out.

        They are left out while memory of another library lies in it, which counts itself.
        """

    def entries(self, after: int, until: int, /) -> tuple[list[Entry], list[Row]]:
        """Return the known resources of a window of births, in order of birth, and their rows."""

    def blocks(self, after: int, until: int, /) -> tuple[list[int], list[Row]]:
        """Return the same for blocks of the arena, by address."""

    def recorded_memory(self, after: int, until: int, /) -> tuple[list[MemoryReference], list[Row]]:
        """Return the same for memory that an object stands for."""

    # ------------------------------------------------------------------ sites and passes

    def closing(self) -> int:
        """Record that a scope was closed. Return how many scopes were closed."""

    def mark(self, name: str, /) -> int:
        """Record the end of a pass. Return how many passes of that name there were."""

    def passes(self) -> dict[str, int]:
        """Return how many passes of each name there were."""

    def look_at_births(self, look: Callable[[bool], bool] | None, /) -> None:
        """Call a function at births 6, 7, 8, 10 and so on from now, on the main thread.

        Each is a quarter further on than the one before, and from some 16,000 on twice as far. It
        is called, too, where a device has a quarter and 8 MB more live bytes than at any call
        before. The call is made as soon as the main thread runs Python code.

        The function is told whether there were so many more bytes, and returns whether it looked;
        where it did not, it is called again at the next birth. None ends the calls.
        """

    def wake_for_looks(self, wake: Callable[[], object] | None, /) -> None:
        """Call a function where a look is due that the main thread does not take.

        It may be waiting for the thread that makes the births. Whoever is woken calls `look_here`
        then. The function runs no Python code: it is the method ``release`` of a lock.
        """

    def look_here(self, look: Callable[[bool], bool], /) -> None:
        """Call a function as `look_at_births` does, on this thread, where a call is due."""

    def series(self, site: int, name: str | None, /) -> list[tuple[int, int, int]]:
        """Return pass, live count and live bytes of a site over the passes of a name.

        Of the passes since births began to be recorded, up to 256 are shown, at even distances.
        Where the last pass is not among these, it is added with what lives now. Without a name each
        birth is a pass.
        """

    def site(self, number: int, /) -> SiteRow:
        """Return what is known of a site."""

    def site_count(self) -> int:
        """Return how many sites there are, numbered from 0."""

    def live_nbytes(self) -> dict[str, int]:
        """Return the live bytes of each device."""

    def place(self) -> tuple[CodeType, int] | None:
        """Return the innermost place in user code of the calling thread."""

LOG: Final[Log]
"""The log of this process."""

def untrack(objects: list[Any], /) -> None:
    """Have the garbage collector pass over objects that cannot be part of a cycle.

    It would go through millions of them otherwise.
    """
