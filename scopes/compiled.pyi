"""Entries, counters of threads, the state of scopes, and the paths of births, deaths and blocks.

One copy of the package, in the main interpreter, can load it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar, final
from weakref import ref

from .base.options import EscapesOption, GraphOption
from .kinds import Kind

R = TypeVar("R")

@final
class Ledger:
    """The counters of one thread.

    Python code adds only to those of its own thread, so that no count is lost and none needs a
    lock. Compiled code may also change how many births are counted on another thread, in one step.
    """

    created_in_scope: int
    created_unscoped: int
    disposed_in_scope: int
    disposed_unscoped: int
    attached: int
    detached: int
    moved: int
    graphs_kept: int
    escaped: int

    def clear(self) -> None:
        """Set all counters to zero: what was counted before is no longer in them."""

    def count_birth(self, *, in_scope: bool) -> object:
        """Count a birth, and return what its entry has as `counted`."""

    def counts(self) -> tuple[int, ...]:
        """Return the counters, in the order of `functions.COUNTERS`."""

def again(failures: list[BaseException], step: Callable[..., R], /, *arguments: Any) -> R | None:
    """Take a step that can be taken again, and once more where it was interrupted.

    Return what it returned, or None where it was interrupted both times. What it raised goes to the
    failures.
    """

def thread_ledger() -> Ledger:
    """Return the ledger of the calling thread."""

def take_back_birth(entry: Entry, /) -> None:
    """Take back that a birth was counted, if it was since the last reset: its composite counts."""

def leave_birth_open(entry: Entry, /) -> None:
    """Take that back, and have the birth counted only when somebody counts: see `Entry.counted`."""

def change_owner(entry: Entry, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Give what is alive and has one owner another one. Return whether that was so.

    One step for every other thread: where it was not so, that one has released it, or was faster.
    """

def count_open_birth(entry: Entry, /) -> None:
    """Count the birth that was left open on the thread where it was. Of others nothing changes."""

def counts_of_process() -> tuple[int, ...]:
    """Return the sums over all threads, also ended ones, in the order of `functions.COUNTERS`."""

def clear_process() -> None:
    """Set the counters of every thread to zero."""

class Entry(ref[Any]):
    """A weak reference to a resource, with what the library knows of it.

    Compared by identity, unlike other references.

    Attributes
    ----------
    key : int
        The ``id`` of the resource.
    kind : Kind
        Its kind.
    owner : ScopeState or None
        The one scope that will dispose it. None for a member: its unit has the owner.
    home : Ledger
        The ledger of the thread that it was born on.
    unit : Entry or None
        For a member, the entry of its composite.
    members : tuple of Entry
        For a composite, the entries of its members.
    counted : object
        False where its birth is not in the statistics: a member's is not, unless it was born before
        its composite. None where that is open: code that puts a composite together has made it, and
        it is counted as soon as somebody counts, or as it leaves its scope by anything but its
        death. Otherwise what stands for the time, on `home`, in which it was counted.
    """

    owner: ScopeState | None
    unit: Entry | None
    members: tuple[Entry, ...]
    counted: object

    # The `_origin` of the scope that has released it; None also for a member, whose unit has it.
    @property
    def released_by(self) -> Origin | None: ...
    @property
    def key(self) -> int: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def home(self) -> Ledger: ...

class HeldEntry(Entry):
    """The entry of an object that is held until it is released or kept: see `Kind.is_held`.

    It is held from the moment when the entry is made, and again when it gets an owner.
    """

    @property
    def is_held(self) -> bool: ...
    def let_go(self) -> None:
        """Hold the object no more: it lives by reference count."""

@final
class StrongEntry(HeldEntry):
    """The entry of an object that cannot be weakly referenced.

    Nothing is known of the object once it is released or kept.
    """

@final
class AnchoredEntry(Entry):
    """The entry of a tuple, which cannot be weakly referenced.

    It is a weak reference to the anchor of the tuple, and has one to each element. The tuple that
    it gives back has the same elements; as long as all of them are alive, the tuple counts as
    alive. Its key is that of the anchor, inverted, because the anchor has an entry of its own.
    Several tuples around one anchor are one resource.
    """

    def anchor(self) -> Any:
        """Return the anchor, or None where it is gone."""

    def remember(self, resource: tuple[Any, ...], /) -> None:
        """Take another tuple for the same resource, and forget those that are gone."""

Origin = tuple[str | None, CodeType | None, int]
"""The name of a scope, and the code and the offset of the instruction that entered it.

A negative offset stands for the first line of the code.
"""

class ScopeState:
    """What a scope is made of, and the ways into and out of it: the base of `DisposeScope`.

    Where something is unusual the compiled methods call methods in Python: `_check_options` of one
    that is made with options, `_prepare`, `_begin`, `_resolve`, `_let_ended_go`,
    `_refuse_to_leave`, `_explain`, `_end` and `_raise_what_failed`. The methods without a body here
    are in Python as well.
    """

    name: str | None
    strict: bool
    graph: GraphOption
    budget: int | None
    escapes: EscapesOption
    # The scope's owned entries, in the order in which they came; a dict, because it is an ordered
    # set.
    _entries: dict[Entry, None]
    # The scope that this one was opened under, as the user sees it; and what lay in the context
    # variable, which can differ.
    _outer: ScopeState | None
    _below: ScopeState | None
    # Open, and nothing about generators to think of: the test on the path of every birth.
    _direct: bool
    _state: int
    # The frame of the generator whose block this is, as long as the scope is open.
    _frame: FrameType | None
    _suspended: tuple[ScopeState, ...]
    # What the arena puts back when the block is left.
    _served: object | None
    # What `note_variables` returned when the scope was entered; and what was held when it was left.
    _variables: tuple[int, CodeType, set[int | str]] | None
    _escaped: tuple[Entry, ...]
    # Where the scope was entered, once it has released something or a block that is not plain was
    # entered. Refers neither to a frame nor to the scope.
    _origin: Origin | None

    def __init__(
        self,
        name: str | None = None,
        *,
        strict: bool = False,
        graph: GraphOption = "keep",
        keep_pages: bool = False,
        arena: bool = True,
        budget: int | str | None = None,
        escapes: EscapesOption = "dispose",
    ) -> None: ...
    @property
    def keep_pages(self) -> bool: ...
    # What the arena knows of this scope, once it has served it.
    @property
    def _account(self) -> object | None: ...
    # Whether the arena serves the block, and whether anything is unusual about that: it does not,
    # or there is a budget.
    @property
    def _arena(self) -> bool: ...
    @property
    def _has_memory_options(self) -> bool: ...
    # Whether its option `graph` says what the block may record: "none", "refuse".
    @property
    def _limits_recording(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]: ...
    @property
    def outer(self) -> ScopeState | None: ...
    def _called(self) -> str:
        """Return how an error message names the scope."""

    def _take(self, entry: Entry, /) -> None:
        """Become the owner of a resource whose entry names the scope as its owner."""

    def _leave(self, doing: Literal["leaving", "closing"], in_flight: BaseException | None, /) -> None:
        """Leave the scope, or close it before its block ends, and raise what failed meanwhile."""

LIVE: Final[dict[int, Entry]]
"""By key, every resource that is alive and not released, members of composites included."""

DEAD: Final[dict[int, Entry]]
"""By key, every resource that was released and is still referenced."""

SHARED: Final[dict[Entry, tuple[Entry, ...]]]
"""For a member of several composites, those besides its `unit`: the last one left disposes it.

See `identity.next_composite_of`.
"""

DEAD_COMPOSITES: Final[list[Entry]]
"""Composites that died by reference count, whose members may live on: see `identity.settle`."""

LISTENERS: Final[list[Any]]
"""The listeners: see `context.Hooks`, and `context.Listener`."""

ENTERED: Final[list[Callable[[ScopeState], object]]]
LEFT: Final[list[Callable[[ScopeState], object]]]
"""What is called when a scope has been entered, and when one is left: see `context.Hooks`."""

AWAITED: Final[dict[str, tuple[Callable[[], None], ...]]]
"""For the name of a module that the program may import, what to do once it has."""

ENTERING: Final[frozenset[str]]
"""The names of functions whose frames may stand between a generator's block and the scope.

They are those of context managers that enter another one, and of the iterator of a loop that opens
a scope for the loop's body.
"""

CURRENT: Final[ContextVar[ScopeState | None]]
"""The innermost scope entered in the context, perhaps closed or suspended since.

See `context.innermost_scope`.
"""

api: Final[object]
"""A capsule for other compiled parts: see ``src/shared/types.h``."""

def set_callbacks(*, finish_release: Callable[..., BaseException | None], settle_earlier: Callable[[], None]) -> None:
    """Have compiled code call two functions of `identity`.

    The first where a release failed or is that of a composite, the second where many composites
    have died.
    """

def set_memory_service(service: Any, /) -> None:
    """Have compiled code call a `context.Memory` where scopes are entered and left."""

def note_modules_seen(number: int, /) -> None:
    """Remember how many modules were imported at the last look for those that are awaited.

    0 has everybody look again.
    """

def modules_were_imported() -> bool:
    """Return whether an awaited module has been imported since the last look, or may have been."""

def make_entry(resource: object, kind: Kind, /) -> Entry:
    """Make the entry of a resource, but not of its members: in no table, unowned, not counted."""

def born(resource: object, kind: Kind, scope: ScopeState | None = None, /) -> Entry:
    """Record the birth of a resource; the current scope owns it from now on.

    Parameters
    ----------
    resource : object
        A new instance, which can be weakly referenced.
    kind : Kind
        Its kind, without members: see `ownership.born_together`.
    scope : ScopeState, optional
        The scope of this context, where the caller knows it already.

    Returns
    -------
    Entry
        Its entry in the identity set. Where it has been born before, that of its first birth:
        nothing is recorded then.
    """

def born_whole(
    resource: object, kind: Kind, members: tuple[object, ...] | list[object], member_kind: Kind, /
) -> Entry | None:
    """Record the birth of a composite just made with all of its members, which nobody else knows.

    Parameters
    ----------
    resource, kind : object and Kind
        As for `born`.
    members : tuple or list of object
        Its members, and None in the place of those that it has not. They can be weakly referenced,
        live on one device, and none of them is a composite.
    member_kind : Kind
        Their kind.

    Returns
    -------
    Entry or None
        None where one of the members is known after all: nothing is recorded then.
    """

def died(entry: Entry, /) -> None:
    """Record that a resource is gone.

    The callback of entries, those of tuples apart: it runs on whichever thread dropped the
    resource.
    """

def anchor_died(entry: Entry, /) -> None:
    """Record that the anchor of a tuple is gone.

    The tuple may have been seen to die before, with another element.
    """

def sweep() -> None:
    """Forget composites that died with all their members: the quick part of `identity.settle`."""

def set_current(scope: ScopeState | None, /) -> None:
    """Change `CURRENT` in this context: one step for every interrupt."""

def release(entry: Entry, with_members: bool = True, by_owner: bool = False, /) -> BaseException | None:
    """Release a resource, its members with it.

    Idempotent: whoever takes the entry out of `LIVE` does the work.

    Parameters
    ----------
    entry : Entry
        Its entry.
    with_members : bool, default True
        Whether its members are released too.
    by_owner : bool, default False
        Whether the scope that owns it does this: messages name it afterwards.

    Returns
    -------
    BaseException or None
        What the release raised, for the caller to collect; members are released all the same.
    """

def release_newest(entries: dict[Entry, None], failures: list[BaseException], /) -> None:
    """Release entries, newest first, until none is left; what is raised goes to the failures."""

def referents(thing: object, /) -> list[Any]:
    """Return what `gc.get_referents` lists for an object, without strings, bytes, numbers and None.

    In a forked process the page of each object is copied whose reference is counted: that of a
    string in a long list is not.
    """

def tracked_objects(*classes: type) -> list[Any]:
    """Return what `gc.get_objects` lists, with the contents of tuples in place of the tuples.

    A list with a tuple that another thread is making would break that thread: a tuple in the making
    must have no other reference. Contents are listed but for strings and integers.

    Parameters
    ----------
    *classes : type
        Of which classes, by the real type of each object; every class if none is given.
    """

def with_undo(both: tuple[Callable[..., Any], Callable[..., object]], /) -> Any:
    """Return a method that calls the first function, and where that raises, the second.

    The second is given the object and the error, which is raised then. A method in Python can be
    interrupted before its first line, where nothing catches it.
    """

def note_variables(frame: FrameType, /) -> tuple[int, CodeType, set[int | str]]:
    """Return the ``id`` of a frame, its code, and which of its variables are bound.

    A variable that is bound to something disposed is not among them.
    """

def held_entries(
    entries: list[Entry],
    types: tuple[type, ...],
    block: tuple[int, CodeType, set[int | str]] | None,
    error: BaseException | None,
    /,
) -> list[Entry]:
    """Return the entries of resources that more refers to than the block's own variables.

    Parameters
    ----------
    entries : list of Entry
        What a scope owns. Nothing else may hold the resources for the call.
    types : tuple of type
        The types of tuples that are resources themselves: one that a variable alone refers to holds
        nothing.
    block : tuple, optional
        What `note_variables` returned when the block began. Its frame is looked for among those
        that run; without it no variable is the block's own.
    error : BaseException, optional
        The exception that is on its way, or handled: what ended frames in its traceback refer to is
        the block's own.
    """

def kept_entries(
    entries: list[Entry],
    types: tuple[type, ...],
    variables: tuple[dict[str, Any], ...],
    judge: Callable[[type | str], int],
    looks: dict[int | str, Any],
    /,
) -> list[Entry]:
    """Return the entries of resources that are reached through an object that keeps what it holds.

    Looked for from the variables of the frames that run and of their modules, and from those of the
    modules and classes that are met on the way, and only where references to a resource are not
    those of variables and of what they alone refer to.

    Parameters
    ----------
    entries : list of Entry
        What a scope owns. Nothing else may hold the resources for the call.
    types : tuple of type
        The types of tuples that are resources themselves.
    variables : tuple of dict
        The variables of modules that keep what they hold.
    judge : callable
        Tells of a class what is done with its instances: 0 for those that are looked into, 1 for
        those that keep what they hold, 2 for those that are looked past. And of the name of a
        module: 0 where the variables of the module and of its classes are looked into, else 2.
    looks : dict
        What `judge` has said, which is asked once for each: by the ``id`` of a class, a weak
        reference to it and the number; by the name of a module, the number. Belongs to `judge`, and
        is filled here.
    """
