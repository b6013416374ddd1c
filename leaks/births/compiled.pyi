"""The log of births, compiled: what is known of everything that was born and is still alive."""

from collections.abc import Callable, Iterable
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
        The kind of what is born there, and its device.
    op : str or None
        The name of the call that makes it.
    places : tuple of (CodeType, int)
        Code objects and instructions, innermost first.
    births : int
        How many births were kept.
    live : float
        How many live; an estimate where births are sampled.
    nbytes, peak_nbytes : int
        The live bytes now, and the most there were at once.
    first_birth, last_birth : int
        The numbers of the first and the last birth there.
    last_birth_before_death : int
        The number of the last birth anywhere when a resource or memory of the site last died.
    held_since : int
        The number of the last birth anywhere when a report was begun that may have held what died
        last: it may have been free since then. 0 if no report did.
    made : int
        How many were born; an estimate where births are sampled. Where larger ones were born too,
        scalars (16 bytes at most) count only while they live: NumPy makes them of the numbers in an
        expression.
    held, held_nbytes : int
        The most that lived between two turns of what makes them, without what an expression makes
        on the way to its result; 0 where the site had too few births to tell.
    last_birth_before_fall : int
        The number of the last birth anywhere when half of that was gone; 0 as long as it is not.
    """

    kind: str
    device: str
    op: str | None
    places: tuple[tuple[CodeType, int], ...]
    births: int
    live: float
    nbytes: int
    peak_nbytes: int
    first_birth: int
    last_birth: int
    last_birth_before_death: int
    held_since: int
    made: int
    held: int
    held_nbytes: int
    last_birth_before_fall: int

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
        How many scopes had been closed before it.
    at_s : float
        When it was born, by ``time.monotonic()``.
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
    """A weak reference to an object that stands for memory whose birth is known.

    Unlike other weak references it is compared by its own identity.
    """

@final
class Log:
    """What is known of everything that was born and is still alive.

    The one instance is `LOG`.

    Attributes
    ----------
    c_api : object
        A capsule for compiled code that records births: see ``scopes/src/shared/birth_log.h``.
    disposals : dict
        Filled by Python code with facts about disposed resources, by their entries; the log takes
        out entries whose resources have died.
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
        """Register what the log records of births of a kind. The log keeps the kind for ever.

        Parameters
        ----------
        kind, name : Kind, str
            The kind, and the name that reports use for it.
        weigh : callable, optional
            Returns the bytes of an instance, in one quick call. Without it, the bytes of the
            storages of the kind are added up.
        memory : callable, optional
            Returns the object that stands for the memory of an instance. The birth of that memory
            is recorded, and none of the instance.
        device : str
            The device of all instances; used only with `weigh`.
        backed : bool
            Whether the bytes of an instance lie in memory that has a birth of its own.
        """

    def open(self, frames: int, sample_nbytes: int, /) -> None:
        """Record births from now on. `series` begin anew where none were being recorded.

        Parameters
        ----------
        frames : int
            How many frames of user code are kept for a birth.
        sample_nbytes : int
            One birth is kept for so many bytes that are born; every birth where it is 0.
        """

    def close(self) -> None:
        """Record no more births. Deaths of what is known are still recorded."""

    def record_soon(self, names: Iterable[str], /) -> None:
        """Have the results of calls with these names recorded as soon as the calls have returned.

        A library may record its births later, such as when the next one happens. Some results are
        gone by then. On the main thread those of these calls are not.
        """

    def clear(self) -> None:
        """Forget everything."""

    def cleared_at(self) -> int:
        """Return the number of the last birth before `clear` was called last; 0 if never."""

    def openings(self) -> int:
        """Return how often births began to be recorded."""

    def counts(self) -> tuple[int, int, int, int]:
        """Return what was counted until now.

        Returns
        -------
        tuple of int
            The number of the last birth, and how many passes ended, scopes were closed, and births
            are known.
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
        """Record the birth of an object that owns memory, such as a model.

        Its site is that of the first user code outside the innermost frames, of which `frames` are
        left out: those of its constructors. It is recorded also where births are sampled. Return
        whether it is known now.
        """

    def exclude(self, anchor: object, /) -> bool:
        """Stop reporting some memory. Return whether it was reported until now."""

    def escape(self, memory: object, /) -> None:
        """Record that the tensor of some memory was disposed.

        The memory is given by the object that stands for it, or by the address of a block.
        """

    def let_out(self, memory: object, /) -> None:
        """Record that an alias of some memory was moved out, such as an array over a storage.

        It has not escaped then, although its tensor is disposed.
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
        """Return whether the block of the arena at an address is still the one of a birth."""

    def count_elsewhere(self, address: int, is_elsewhere: bool, /) -> None:
        """Leave the bytes of a block out of the live bytes of its device, or count them again.

        They are left out while memory of another library lies in the block, whose birth counts
        them.
        """

    def entries(self, after: int, until: int, /) -> tuple[list[Entry], list[Row]]:
        """Return the known resources of a window of births, in order of birth, and their rows.

        The window has the births with numbers above `after`, up to and including `until`.
        """

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

    def last_pass(self, name: str, /) -> tuple[int, int]:
        """Return the numbers of the last birth before the last pass of a name, and in it; or 0."""

    def report_begins(self) -> None:
        """Take note that a report is made beside the program, which goes on meanwhile.

        What the report has found lives as long as it is made, so the program seems to keep more.
        What lived at the points of series that are recorded until then is estimated from the points
        before and after them.
        """

    def report_ends(self) -> None:
        """Take note that a report which was made beside the program has ended."""

    def look_at_births(self, look: Callable[[bool], bool | None] | None, /) -> None:
        """Call a function on the main thread at growing numbers of births, to look at what lives.

        The calls are at births 6, 7, 8, 10 and so on from now: each a quarter further on than the
        one before, and from some 16,000 births on twice as far. There is also a call when a device
        has a quarter and 8 MiB more live bytes than at any call before. A call is made as soon as
        the main thread runs Python code.

        The function is told whether a device had so many more bytes, and returns whether it looked;
        where it did not, it is called again at the next birth. Where it returns None, the next call
        is as late as after a look, and the bytes at this call do not count, unless it was told of
        them. None instead of a function ends the calls.
        """

    def wake_for_looks(self, wake: Callable[[], object] | None, /) -> None:
        """Call a function where a look is due that the main thread does not take.

        It may be waiting for the thread that makes the births. Whoever is woken calls `look_here`
        then. The function runs no Python code: it is the method ``release`` of a lock.
        """

    def look_here(self, look: Callable[[bool], bool | None], /) -> None:
        """Call a function as `look_at_births` does, on this thread, where a call is due."""

    def series(self, site: int, name: str | None, /) -> list[tuple[int, int, int]]:
        """Return pass, live count and live bytes of a site over the passes of a name.

        Returned are up to 256 passes since births began to be recorded, at even distances. Where
        the last pass is not among these, it is added with what lives now. Without a name each birth
        is a pass.
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

    A snapshot may have millions of them, which each collection would visit.
    """
