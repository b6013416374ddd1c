"""Entries, counters of threads, the state of scopes, and what happens at births, deaths and blocks.

The C files are in src/. Only one copy of the package, in the main interpreter, can load the module.
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

    Python code adds only to the ledger of its own thread, so that no count is lost and none needs a
    lock. Only compiled code changes the births that another thread counted, in one step.
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
    """Call a function, and call it again if it raised, such as for an interrupt.

    Exceptions are added to `failures`. Return the result, or None if both calls raised. The
    function, `step`, must be one that can be repeated.
    """

def thread_ledger() -> Ledger:
    """Return the ledger of the calling thread."""

def take_back_birth(entry: Entry, /) -> None:
    """Subtract a birth from the counters, if it was counted since the last reset.

    For members: their composite is counted instead.
    """

def leave_birth_open(entry: Entry, /) -> None:
    """Take a birth back, and leave it open whether it counts: see `Entry.counted`."""

def change_owner(entry: Entry, source: ScopeState | None, target: ScopeState | None, /) -> bool:
    """Change the owner of a live resource from `source` to `target`. Return whether it was changed.

    It is not where another thread has released the resource or changed its owner before. No other
    thread runs in between.
    """

def count_open_birth(entry: Entry, /) -> None:
    """Count a birth that was left open, on the thread where it happened; else do nothing."""

def counts_of_process() -> tuple[int, ...]:
    """Return the sums over all threads, also ended ones, in the order of `functions.COUNTERS`."""

def clear_process() -> None:
    """Set the counters of every thread to zero."""

class Entry(ref[Any]):
    """A weak reference to a resource, with what the library knows of the resource.

    Entries are compared by identity, unlike other weak references.

    Attributes
    ----------
    key : int
        The ``id`` of the resource; for a tuple see `AnchoredEntry`.
    kind : Kind
        The kind of the resource.
    owner : ScopeState or None
        The one scope that will dispose the resource. None for a member: its unit has the owner.
    home : Ledger
        The ledger of the thread on which the resource was born.
    unit : Entry or None
        For a member, the entry of its composite.
    members : tuple of Entry
        For a composite, the entries of its members.
    counted : object
        Whether the birth is in the statistics. False if it is not, as for members. None if that is
        open: the resource was made by code that puts a composite together, and may become a member.
        An open birth is counted when somebody asks for statistics, and when the resource leaves its
        scope in any way but its death. Otherwise the period of `home` in which it was counted: see
        `struct Ledger` in src/shared/types.h.
    """

    owner: ScopeState | None
    unit: Entry | None
    members: tuple[Entry, ...]
    counted: object

    # The `_origin` of the scope that released the resource. None if no scope did, and for a member,
    # whose unit has it.
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

    The entry holds the object as soon as it is made. After `let_go` it holds the object again when
    it gets an owner.
    """

    @property
    def is_held(self) -> bool: ...
    def let_go(self) -> None:
        """Drop the strong reference: the object lives by its reference count."""

@final
class StrongEntry(HeldEntry):
    """The entry of an object that cannot be weakly referenced.

    The library forgets the object once it is released or kept.
    """

@final
class AnchoredEntry(Entry):
    """The entry of a tuple, which cannot be weakly referenced.

    The anchor is the element whose identity stands for the tuple's: see `Kind.anchor`. The entry is
    a weak reference to the anchor, and has a weak reference to each element. Called, it returns a
    new tuple of the same elements. The tuple counts as alive while all elements are. Its key is the
    inverted ``id`` of the anchor, because the anchor has an entry of its own. Several tuples with
    one anchor are one resource.
    """

    def anchor(self) -> Any:
        """Return the anchor, or None if it is gone."""

    def remember(self, resource: tuple[Any, ...], /) -> None:
        """Add another tuple with the same anchor, and forget tuples with dead elements."""

Origin = tuple[str | None, CodeType | None, int]
"""The name of a scope, and the code and the offset of the instruction that entered it.

A negative offset stands for the first line of the code.
"""

class ScopeState:
    """The state of a scope, and how it is entered and left: the base of `DisposeScope`.

    `__init__`, `__enter__`, `__exit__` and `_leave` are compiled. In unusual cases they call
    methods of `DisposeScope`: `_check_options`, `_prepare`, `_begin`, `_resolve`,
    `_forget_ended_generators`, `_refuse_to_leave`, `_explain`, `_end` and `_raise_what_failed`.
    `outer`, `_called` and `_take` are methods of `DisposeScope`, too.
    """

    name: str | None
    strict: bool
    graph: GraphOption
    budget: int | None
    escapes: EscapesOption
    # The entries that the scope owns, the oldest first. A dict serves as an ordered set.
    _entries: dict[Entry, None]
    # The outer scope, as the user sees it.
    _outer: ScopeState | None
    # The scope that was in the context variable when this one was entered. It is not the outer one
    # if it was closed or suspended.
    _below: ScopeState | None
    # Whether the scope is open and no generators are involved. Every birth tests this.
    _direct: bool
    # `context.UNOPENED`, `OPEN` or `CLOSED`.
    _state: int
    # The frame of the generator whose block this is, while the scope is open; else None.
    _frame: FrameType | None
    # The scopes that were suspended when this one was entered; they may be resumed in its block.
    _suspended: tuple[ScopeState, ...]
    # What the arena puts back when the block is left.
    _served: object | None
    # What `note_variables` returned when the scope was entered.
    _variables: tuple[int, CodeType, set[int | str]] | None
    # The entries of what was held when the scope was left.
    _escaped: tuple[Entry, ...]
    # Where the scope was entered. Set when the scope releases something, and for a decorator.
    # Refers neither to a frame nor to the scope.
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
    # The arena's account of the scope, once the arena has served it.
    @property
    def _account(self) -> object | None: ...
    # Whether the arena serves the block.
    @property
    def _arena(self) -> bool: ...
    # Whether the scope has ``arena=False`` or a budget.
    @property
    def _has_memory_options(self) -> bool: ...
    # Whether the option `graph` limits what the block may record: "none" and "refuse" do.
    @property
    def _limits_recording(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]: ...
    @property
    def outer(self) -> ScopeState | None: ...
    def _called(self) -> str:
        """Return the name of the scope for error messages."""

    def _take(self, entry: Entry, /) -> None:
        """Add an entry, whose `owner` is the scope already, to `_entries`.

        If the scope was closed meanwhile, the entry goes to the next open scope out.
        """

    def _leave(self, doing: Literal["leaving", "closing"], in_flight: BaseException | None, /) -> None:
        """Leave the scope, or close it before its block ends, and raise what failed meanwhile."""

LIVE: Final[dict[int, Entry]]
"""By key, the entry of every resource that is alive and not released, members included."""

DEAD: Final[dict[int, Entry]]
"""By key, the entry of every resource that was released and is still referenced."""

SHARED: Final[dict[Entry, tuple[Entry, ...]]]
"""By a member of several composites, the composites besides its `unit`.

The last of its composites disposes it: see `identity.next_composite_of`.
"""

DEAD_COMPOSITES: Final[list[Entry]]
"""Composites that died by reference count, whose members may live on: see `identity.settle`."""

LISTENERS: Final[list[Any]]
"""The listeners: see `context.Hooks.listeners` and `context.Listener`."""

ENTERED: Final[list[Callable[[ScopeState], object]]]
"""Functions that are called when a scope has been entered: see `context.Hooks.entered`."""

LEFT: Final[list[Callable[[ScopeState], object]]]
"""Functions that are called when a scope is left: see `context.Hooks.left`."""

AWAITED: Final[dict[str, tuple[Callable[[], None], ...]]]
"""By the name of a module, the functions to call once the program has imported it."""

ENTERING: Final[frozenset[str]]
"""The names of functions that enter a scope for their caller's block.

They are methods of context managers that enter another one, and of iterators that open a scope for
the body of a loop.
"""

CURRENT: Final[ContextVar[ScopeState | None]]
"""The scope that was entered last in the context; it may be closed or suspended since.

See `context.innermost_scope`.
"""

api: Final[object]
"""A capsule for other compiled modules: see ``struct scopes_api`` in ``src/shared/types.h``."""

def set_callbacks(*, finish_release: Callable[..., BaseException | None], settle_earlier: Callable[[], None]) -> None:
    """Set the two functions of `identity` that compiled code calls.

    It calls `finish_release` if a release failed or the resource is a composite, and
    `settle_earlier` if many composites have died.
    """

def set_memory_service(service: Any, /) -> None:
    """Set the `context.Memory` that compiled code calls when scopes are entered and left."""

def note_modules_seen(number: int, /) -> None:
    """Remember the size of ``sys.modules`` at the last look for awaited modules.

    With 0 the next caller of `modules_were_imported` gets True.
    """

def modules_were_imported() -> bool:
    """Return whether an awaited module may have been imported since the last look.

    It may, if ``sys.modules`` has another size.
    """

def make_entry(resource: object, kind: Kind, /) -> Entry:
    """Make the entry of a resource: in no table, unowned and not counted. Its members get none."""

def born(resource: object, kind: Kind, scope: ScopeState | None = None, /) -> Entry:
    """Record the birth of a resource; the current scope owns it from now on.

    Parameters
    ----------
    resource : object
        A new instance, which can be weakly referenced.
    kind : Kind
        Its kind, without members: see `ownership.born_together`.
    scope : ScopeState, optional
        The current scope, if the caller knows it already.

    Returns
    -------
    Entry
        Its entry. If the resource has an entry already, nothing is recorded, and that one is
        returned.
    """

def born_tuple(resource: object, kind: Kind, element_kind: Kind, /) -> Entry | None:
    """Record the birth of a new tuple and its new elements: see `ownership.born_together`.

    Returns
    -------
    Entry or None
        None if an element has an entry already: nothing is recorded then.
    """

def died(entry: Entry, /) -> None:
    """Record that a resource is gone.

    The weak reference callback of all entries except those of tuples. It runs on the thread that
    dropped the last reference.
    """

def anchor_died(entry: Entry, /) -> None:
    """Record that the anchor of a tuple is gone: the callback of tuples' entries.

    The death of the tuple may have been recorded before, with that of another element.
    """

def sweep() -> None:
    """Forget the dead composites whose members are dead: the quick part of `identity.settle`."""

def set_current(scope: ScopeState | None, /) -> None:
    """Set `CURRENT` in this context. No interrupt can come in between."""

def release(entry: Entry, with_members: bool = True, by_owner: bool = False, /) -> BaseException | None:
    """Release a resource and its members.

    Idempotent: only the caller that takes the entry out of `LIVE` releases the resource.

    Parameters
    ----------
    entry : Entry
        The entry of the resource.
    with_members : bool, default True
        Whether its members are released too.
    by_owner : bool, default False
        Whether the owning scope releases it: errors about later uses name that scope.

    Returns
    -------
    BaseException or None
        What the release raised. The members are released all the same.
    """

def release_newest(entries: dict[Entry, None], failures: list[BaseException], /) -> None:
    """Release entries, newest first, until none is left. Exceptions are added to `failures`."""

def referents(thing: object, /) -> list[Any]:
    """Return what `gc.get_referents` lists for an object, without strings, bytes, numbers and None.

    A new reference writes to an object's memory, which makes a forked process copy the page. The
    strings of a long list are left out for that reason.
    """

def tracked_objects(*classes: type) -> list[Any]:
    """Return what `gc.get_objects` lists, with the elements of tuples in place of the tuples.

    Tuples are not listed, because another thread may still be filling one, which fails if anybody
    else refers to it. Elements that are strings or integers are left out.

    Parameters
    ----------
    *classes : type
        The classes of the objects to list, by ``type()``; objects of every class if none is given.
    """

def with_undo(both: tuple[Callable[..., Any], Callable[..., object]], /) -> Any:
    """Return a method that calls the first function and, if that raises, the second.

    The second gets the object and the exception, which propagates then. A method in Python could
    not do that: an interrupt can come before its first line, outside of any ``try``.
    """

def note_variables(frame: FrameType, /) -> tuple[int, CodeType, set[int | str]]:
    """Return the ``id`` of a frame, its code, and the numbers or names of its bound variables.

    A variable counts as unbound if its value is a disposed resource.
    """

def variables_of(frame: FrameType, /) -> dict[str, Any]:
    """Return the variables of a frame by name, in a new dict.

    ``f_locals`` would change the program before Python 3.13: it writes the values of the moment
    into the dict that `locals` has returned, and a frame keeps that dict, with its values.
    """

def held_entries(
    entries: list[Entry],
    types: tuple[type, ...],
    block: tuple[int, CodeType, set[int | str]] | None,
    error: BaseException | None,
    /,
) -> list[Entry]:
    """Return the entries of resources that are referenced by more than the block's own variables.

    Parameters
    ----------
    entries : list of Entry
        The entries that a scope owns. The caller must not hold references to the resources.
    types : tuple of type
        The types of tuples that are resources. Such a tuple does not hold its elements if only a
        variable refers to it.
    block : tuple, optional
        What `note_variables` returned when the block began. Without it, or if its frame does not
        run any more, no variable is the block's own.
    error : BaseException, optional
        The exception that propagates or is handled. The variables of ended frames in its traceback
        are the block's own, too.
    """

def kept_entries(
    entries: list[Entry],
    types: tuple[type, ...],
    variables: tuple[dict[str, Any], ...],
    judge: Callable[[type | str], int],
    looks: dict[int | str, Any],
    /,
) -> list[Entry]:
    """Return the entries of resources that are reached through a keeper: an object such as a model.

    The search begins at the variables of running frames and of their modules, and goes on through
    the modules and classes that it meets. It is made only for resources with references from
    elsewhere than variables and containers that only variables refer to.

    Parameters
    ----------
    entries : list of Entry
        The entries that a scope owns. The caller must not hold references to the resources.
    types : tuple of type
        The types of tuples that are resources.
    variables : tuple of dict
        The dicts of modules that are keepers themselves.
    judge : callable
        Given a class, returns what to do with its instances: 0 to look into them, 1 if they are
        keepers, 2 to leave them out. Given the name of a module, returns 0 to look into the
        variables of the module and of its classes, 2 to leave them out.
    looks : dict
        A cache of the answers of `judge`, which this function fills: by the ``id`` of a class, a
        weak reference to the class and the number; by the name of a module, the number.
    """
