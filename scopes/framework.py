"""The interface between libraries of tensors and scopes: one `Framework` each, registered once.

A framework teaches scopes the types of one library: how their instances are released and measured
(`Kind`), how scopes learn of births, and what the rest of this package asks of that library.
Nothing is imported for it: it is installed once the program itself has imported the library.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import itemgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar, cast, final
from warnings import warn

from .base.process import PATCHES, await_module, hold_across_forks, install_at_import_while, install_imported
from .base.sites import Mark, Role, add_library, add_role_of_code
from .context import HOOKS, innermost_scope
from .kinds import KINDS, Finder, Kind, add_kind, find_births_with, set_current_index
from .scope import DisposeScope
from .tree_walk import add_keepers

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .identity import Entry

__all__ = [
    "FRAMEWORKS",
    "Belonging",
    "BirthLog",
    "Escape",
    "Framework",
    "HeldMemory",
    "LibraryCache",
    "LifeLog",
    "LifeRecording",
    "LiveMemory",
    "MemoryByAddress",
    "MemoryFacts",
    "ModelFacts",
    "Part",
    "only_records",
    "recording",
    "register",
    "register_lazily",
]

Part = Literal["tensor", "node", "module"]
"""A tensor, a node of an autograd graph, or a module, which has tensors and other modules."""

Escape = Literal["due", "disposed"]
"""How memory escaped: it outlived its scope (due), or its tensor, which was disposed."""

_F = TypeVar("_F", bound=Callable[..., Any])
_RECORDING: Final[set[CodeType]] = set()


def recording(function: _F) -> _F:
    """Mark a function of an adapter that does nothing but call the library and record births.

    What lives may be looked at while it is running: it has no lock, and has begun nothing.
    """
    _RECORDING.add(cast("FunctionType", function).__code__)
    return function


def only_records(code: CodeType) -> bool:
    """Return whether code is that of a function marked so."""
    return code in _RECORDING


MemoryFacts = tuple[Hashable, int]
"""The identity of some memory, as the storages of a kind give it, and its bytes."""


class HeldMemory(NamedTuple):
    """A storage that an object keeps.

    Attributes
    ----------
    step : str
        How code reaches it from the object; empty for a tensor's own.
    identity : hashable
        Its identity, as `Kind.storages` gives it.
    used_nbytes : int
        The bytes of it that the object uses.
    """

    step: str
    identity: Hashable
    used_nbytes: int


class ModelFacts(NamedTuple):
    """What is reported of a model beside its bytes.

    Attributes
    ----------
    name : str
        What a report calls it, such as ``"Linear(512, 512)"``.
    device : str
        The name of the device of its first parameter or buffer.
    parts : int
        How many modules, parameters and buffers it has.
    is_added : bool
        Whether it is a part of another model, to which it was added after that one was made.
    """

    name: str
    device: str
    parts: int
    is_added: bool = False


class LiveMemory(NamedTuple):
    """Memory in a log of births, and how to ask what of it is there: see `Framework.live_memory`.

    Attributes
    ----------
    kind : str
        The name of the kind that it was born as; what the log has of other kinds is left out.
    references, rows : sequence
        What the log has: see `BirthLog.recorded_memory`.
    identify : callable, optional
        Given what a reference refers to, returns its identity and its bytes, or None for what has
        gone. Left out, the references are identities themselves.
    lives : callable
        Given a reference and the number of its birth, returns whether the memory is there.
    escape : callable, optional
        Given the memory (with the attribute `identity`) and its reference, returns how it has
        escaped; None where it has not.
    describe : callable, optional
        For models: given one, returns what is reported of it.
    """

    kind: str
    references: Sequence[Any]
    rows: Sequence[Any]
    identify: Callable[[Any], MemoryFacts | None] | None
    lives: Callable[[Any, int], bool]
    escape: Callable[[Any, Any], Escape | None] | None = None
    describe: Callable[[Any], ModelFacts] | None = None


@final
class MemoryByAddress:
    """A library's recorded memory, found by an address in it: see `Framework.identity_at`.

    Parameters
    ----------
    span_of : callable
        Given what the log has recorded, returns where its memory begins and ends; None for what has
        gone, and for memory of other libraries.
    """

    def __init__(self, span_of: Callable[[Any], tuple[int, int] | None]) -> None:
        self._span_of = span_of
        # Where each begins, ascending; where it ends, and a reference to it.
        self._starts: list[int] = []
        self._others: list[tuple[int, Callable[[], Any]]] = []
        # They are looked up anew after more births.
        self._births = -1

    def at(self, address: int, log: BirthLog) -> Any:
        """Return what the log has recorded at an address; None where that is nothing."""
        births = log.counts()[0]
        if births != self._births:
            self._look_up(log, births)
        place = bisect_right(self._starts, address) - 1
        end, reference = self._others[place] if place >= 0 else (0, None)
        return reference() if reference is not None and address < end else None

    def _look_up(self, log: BirthLog, births: int) -> None:
        spans: list[tuple[int, int, Callable[[], Any]]] = []
        for reference in log.recorded_memory(0, births)[0]:
            thing = reference()
            span = None if thing is None else self._span_of(thing)
            if span is not None:
                spans.append((*span, reference))
        spans.sort(key=itemgetter(0))
        self._starts = [start for start, _, _ in spans]
        self._others = [(end, reference) for _, end, reference in spans]
        self._births = births


class Belonging(NamedTuple):
    """A part of a module, or the memory of a tensor: see `Framework.belongings`.

    Attributes
    ----------
    name : str
        How code reaches it from there, such as ``".encoder.weight"``; empty for the thing itself.
    anchor : object
        What goes when it goes: the part, or the storage.
    memory : MemoryFacts or None
        For memory, its identity and its bytes.
    """

    name: str
    anchor: object
    memory: MemoryFacts | None


class LibraryCache(NamedTuple):
    """A cache of the library's own, as the search for holders comes to it.

    Attributes
    ----------
    start : str
        A regular expression for the beginning of a chain that leads through it.
    name : str
        What it is, with the library: "a cache of torch.compile".
    empty : str
        The call that empties it.
    """

    start: str
    name: str
    empty: str


class BirthLog(Protocol):
    """The part of the log of births that every framework may use while a detector is open."""

    def counts(self) -> tuple[int, int, int, int]:
        """Return the number of the last birth, of passes, of closed scopes and of known births."""
        ...

    def record_owner(self, owner: object, op: str | None, kind: str, device: str, frames: int, /) -> bool:
        """Record that what owns memory was made, such as a model. Return whether it is known now.

        Parameters
        ----------
        owner : object
            It is referred to weakly.
        op : str, optional
            What was called. What one line makes by two calls is counted apart.
        kind, device : str
            As for memory; its bytes are asked for when a report is made.
        frames : int
            How many of the innermost frames belong to it: its line is outside of them.
        """
        ...

    def record_memory(self, anchor: object, op: str | None, nbytes: int, kind: str, device: str, /) -> bool:
        """Record that memory was born, at the line of the caller. Return whether it is known now.

        Parameters
        ----------
        anchor : object
            What stands for the memory, and goes when it goes. It is referred to weakly.
        op : str, optional
            The name of the call that made it.
        nbytes : int
            Its bytes.
        kind : str
            The name of the kind that it was born as.
        device : str
            The name of its device, with its index.
        """
        ...

    def exclude(self, anchor: object, /) -> bool:
        """Report some memory no more: it is a model's. Return whether it was reported until now."""
        ...

    def recorded_memory(self, after: int, until: int, /) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return weak references to what a window of births recorded, and the rows of the log."""
        ...


class LifeLog(Protocol):
    """A recording of what memory is born and freed, in its order: what peaks are found in."""

    def note(self, nbytes: int, /) -> int | None:
        """Record that memory is born, at the line of the caller.

        Return the number of the birth; None after the end of the recording, or where it is full.

        Parameters
        ----------
        nbytes : int
            Its bytes.
        """
        ...

    def note_death(self, birth: int, /) -> object:
        """Record that the memory of a birth is freed."""
        ...

    def note_saved(self, birth: int, /) -> object:
        """Record that a graph may have saved the memory of a birth."""
        ...


class LifeRecording(LifeLog, Protocol):
    """A `LifeLog` of the whole process, and what it has."""

    @property
    def time(self) -> int:
        """How many births are recorded."""
        ...

    def end(self) -> object:
        """Record no more."""
        ...

    def births(self) -> list[tuple[int, int, int, int, tuple[Mark, ...]]]:
        """Return bytes, death, outcome, slot and places of each birth.

        Called after the end: see `leaks.peaks.recording`.
        """
        ...


class Framework:
    """What scopes ask of one library of tensors. Subclass it, and `register` one instance.

    Every method has a default that does nothing, and costs nothing where it is not overridden.

    Attributes
    ----------
    module : str
        The name of the library's top module, such as ``"torch"``. The framework is installed when
        the program has imported it: as the next scope is entered, or at the end of the import where
        a scope is open then.
    packages : sequence of str
        Top packages of the library besides that of `module`. Their lines are no birth sites; their
        callers' are.

    Examples
    --------
    >>> from disposescope.frameworks import Framework, Kind, register
    >>> class ArrayKind(Kind):
    ...     name = "some_library.Array"
    ...
    ...     def __init__(self, cls):
    ...         self.cls = cls
    ...
    ...     def release(self, array):
    ...         array.free()
    ...
    ...     def storages(self, array):
    ...         return [(array.address, array.nbytes)]
    >>> class Adapter(Framework):
    ...     module = "some_library"
    ...
    ...     @property
    ...     def kinds(self):
    ...         import some_library
    ...
    ...         return [ArrayKind(some_library.Array)]
    >>> register(Adapter())  # nothing is imported: it waits until the program imports it
    """

    module: str = ""
    packages: Sequence[str] = ()

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kinds of its tensors. Read once, when the library has been imported."""
        return ()

    @property
    def keepers(self) -> Sequence[str | type]:
        """Classes whose objects keep what they get or make, for later: see `disposescope.keeps`."""
        return ()

    @property
    def current_indices(self) -> Mapping[str, Callable[[], int]]:
        """By device type ("cuda"), functions that tell what index an unnumbered name stands for."""
        return {}

    def install(self) -> None:
        """Do what is needed for births to be seen.

        Called once, after the kinds have been registered.
        """

    def scope_entered(self, scope: DisposeScope, /) -> object:
        """Called when a scope was entered, in its thread."""

    def scope_left(self, scope: DisposeScope, /) -> object:
        """Called when a scope is left or closed, before it releases what it owns.

        Called once, but for a scope with ``graph="none"`` or ``"refuse"``: also when its block is
        left after it was closed, and, as `scope_entered`, around each suspension of a generator or
        coroutine that it decorates.
        """

    def find_births(self, scope: DisposeScope | None, /) -> object:
        """Record births that could not be seen when they happened.

        Asked before anything is counted, and before a verb acts on an instance of one of the kinds;
        and only then.

        Parameters
        ----------
        scope : DisposeScope or None
            The scope that is asked about; None for all.
        """

    def children(self, node: Any, /) -> Iterator[tuple[str, object]] | None:
        """Return what an object of the library's holds, labelled as code would reach it.

        None for a resource, and for any other object. No code of the program may be run.
        """
        return None

    def array_moved_out(self, array: object, /) -> object:
        """Called when a plain array was moved out of a scope, whoever has its memory."""

    def role_of_code(self, code: CodeType, module: str, /) -> Role | None:
        """Return the role of the library's or adapter's code; None where `Role.LIBRARY` is right.

        Asked once for each code, given with the name of its module. Also of code that stands in no
        file, such as what a library writes while the program runs: None is then the program's own.
        """
        return None

    # What a leak detector asks. It sees the births of resources without any of it.

    reported_by_memory: Sequence[Kind] = ()
    """The kinds whose births are recorded as those of their memory alone: see `anchor_of`."""

    def start_watching(self, log: BirthLog, /) -> object:
        """Record births of memory on this thread from now on, inside of scopes and outside.

        Called when the first detector opens, and then on each thread that runs meanwhile.
        """

    def stop_watching(self) -> object:
        """Record no more: the last detector closes."""

    def record_pending(self) -> object:
        """Record the births that were seen and are not in the log yet."""

    def anchor_of(self, entry: Entry, /) -> object | None:
        """Return what stands for a resource's memory in the log; None where the resource does."""
        return None

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the memory that was born in a window of births, whoever refers to it now."""
        return None

    def live_models(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the models that were made in a window of births.

        Each has the bytes of all that belongs to it.
        """
        return None

    def disposing(self, entry: Entry, owner: DisposeScope | None, /) -> object:
        """Called before a resource is disposed: what uses its memory from then on has escaped."""

    def cached_nbytes(self) -> int:
        """Return the bytes that the library's allocator keeps for later use.

        Asking starts no device.
        """
        return 0

    def borrowed_addresses(self) -> Iterable[int]:
        """Return addresses of recorded memory that others allocated: it may be an array's."""
        return ()

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the identity of the library's recorded memory that an address lies in, or None."""
        return None

    # What is asked to find the peak of memory.

    def record_lives(self, most_births: int, /) -> LifeRecording | None:
        """Return a recording of what the library allocates and frees from now on.

        It covers births inside of scopes and outside. A detector is open meanwhile.

        Parameters
        ----------
        most_births : int
            So many births are recorded at most.
        """
        return None

    def note_lives(self, lives: LifeLog, /) -> Callable[[], object] | None:
        """Note in a recording what library memory is born and freed on this thread from now on.

        Returns
        -------
        callable or None
            Ends that, on the same thread.
        """
        return None

    # What the search for holders asks. No code of the program may be run, and nothing is changed.

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context for the calls below: others that follow the library do not see them.

        Where it is unsafe to look at the library's objects beside what other threads do, the
        context waits until that ends.
        """
        return nullcontext()

    def part_of(self, cls: type, /) -> Part | None:
        """Return what the instances of a type are; None where the library says nothing of them."""
        return None

    def references(self, thing: Any, /) -> Sequence[tuple[str, object]]:
        """Return what an object holds that the garbage collector does not see.

        Each is labelled as code would reach it.
        """
        return ()

    def memory_of(self, thing: Any, /) -> Sequence[HeldMemory]:
        """Return the storages that an object keeps."""
        return ()

    def belongings(self, thing: Any, /) -> Sequence[Belonging]:
        """Return the modules in a module and the memory of its tensors, or that of a tensor."""
        return ()

    def description_of(self, thing: Any, /) -> str | None:
        """Return what reports call a module, such as ``"Linear(512, 512)"``; None for all else."""
        return None

    caches: Sequence[LibraryCache] = ()
    """Caches of the library that hold what a program gave it."""

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the identity of the storage of a tensor that refers to nothing else, or None."""
        return None

    def steps_behind(self, tensor: Any, /) -> int:
        """Return in how many steps of a loop a tensor's graph was made; 0 where that is unknown.

        0 also where the graph is of few steps and a backward pass can go through it: it waits for
        that.
        """
        return 0

    def step_of_graph(self, tensor: Any, /) -> tuple[float, bool] | None:
        """Return after which share of the steps a graph was made, and whether it is spent.

        It is spent where nothing can go back through it any more: what it saved was freed, or
        changed in place since. None where the steps are unknown.
        """
        return None

    def graph_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return the bytes that graphs of tensors saved, each storage once; 0 where unknown."""
        return 0

    def node_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return about how many bytes the nodes of the last tensor's graph take; 0 where unknown.

        A node takes memory also when what it saved was freed. Nodes that are in graphs of the other
        tensors as well do not count.
        """
        return 0

    def is_of_evaluation(self, holders: Sequence[object], part: Any, /) -> bool:
        """Return whether a graph is a model's that is in eval mode.

        Parameters
        ----------
        holders : sequence of object
            What leads to the graph, each to the next.
        part : object
            The tensor or node where the graph begins.
        """
        return False

    def graph_walked(self, nodes: dict[int, Any], edges: dict[int, list[int]], /) -> object:
        """Called when graph nodes were walked, by ``id``, with the ids of what each refers to."""


@final
class Frameworks:
    """The frameworks that are installed. The one instance is `FRAMEWORKS`."""

    def __init__(self) -> None:
        self._installed: tuple[Framework, ...] = ()
        self._with_own: dict[str, tuple[Framework, ...]] = {}
        self._after_install: tuple[Callable[[], object], ...] = ()
        self._log: BirthLog | None = None
        # Those that have been told of the log.
        self._watching: tuple[Framework, ...] = ()
        # A framework may be installed while another thread opens or closes a detector.
        self._lock: Final = threading.RLock()
        hold_across_forks(self._lock, 2)

    def with_own(self, method: str) -> tuple[Framework, ...]:
        """Return the frameworks with a method of their own, in the order of their installation."""
        try:
            return self._with_own[method]
        except KeyError:
            found = tuple(framework for framework in self._installed if _overrides(framework, method))
            self._with_own[method] = found
            return found

    def identity_at(self, address: int, asking: Framework | None) -> Hashable | None:
        """Return the identity that another framework than the one that asks has for an address."""
        for framework in self.with_own("identity_at"):
            identity = None if framework is asking else framework.identity_at(address)
            if identity is not None:
                return identity
        return None

    def that_watch(self, method: str) -> list[Framework]:
        """Return those of `with_own` that have begun to watch: other threads go on meanwhile."""
        watching = self._watching
        return [framework for framework in self.with_own(method) if framework in watching]

    def after_install(self, function: Callable[[], object]) -> None:
        """Call a function whenever a framework has been installed."""
        self._after_install += (function,)

    def add(self, framework: Framework) -> None:
        """Add a framework, if it is not there yet; a detector that is open asks it from now on."""
        with self._lock:
            if framework not in self._installed:
                self._installed += (framework,)
            self._with_own.clear()
            for function in self._after_install:
                function()
            if self._log is not None:
                framework.start_watching(self._log)
                self._watching = self._installed

    def start_watching(self, log: BirthLog) -> None:
        """Have all frameworks record births on this thread, those too that are installed later."""
        with self._lock:
            self._log = log
            for framework in self.with_own("start_watching"):
                framework.start_watching(log)
            self._watching = self._installed

    def stop_watching(self) -> None:
        """Have none of them record births any more."""
        with self._lock:
            self._log = None
            self._watching = ()
            for framework in self.with_own("stop_watching"):
                framework.stop_watching()

    def record_pending(self) -> None:
        """Have all frameworks record what they have seen."""
        for framework in self.with_own("record_pending"):
            framework.record_pending()


FRAMEWORKS: Final = Frameworks()


def register(framework: Framework) -> None:
    """Have a framework installed once the program has imported its module.

    Parameters
    ----------
    framework : Framework
        The framework. It lives as long as the process.

    Raises
    ------
    TypeError
        It is no `Framework`.
    ValueError
        It names no module.
    """
    if not isinstance(framework, Framework):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
        raise TypeError(f"register: expected an instance of Framework, not {framework!r}")
    if not framework.module:
        raise ValueError(f"register: {type(framework).__qualname__} does not say which module it is for")
    await_module(framework.module, partial(_install_or_say, framework.module, partial(_install, framework)))


def register_lazily(module: str, load: Callable[[], Framework | None]) -> None:
    """Make a framework, and install it, once the program has imported a module.

    For a framework that imports its library itself.

    Parameters
    ----------
    module : str
        The name of the library's top module.
    load : callable
        Makes the framework; None where there is nothing to install. Called again after an
        interrupt.
    """

    def install() -> None:
        framework = load()
        if framework is not None:
            _install(framework)

    await_module(module, partial(_install_or_say, module, install))


def _install_or_say(module: str, install: Callable[[], None]) -> None:
    """Install a framework; where that fails, the exception and reports say what is missing."""
    try:
        install()
    except Exception as error:
        error.add_note(
            f"scopes do not own what {module} makes: its framework could not be installed, and is not tried again"
        )
        PATCHES.note_unwatched(f"{module}: what it makes")
        raise


# Frameworks of other packages: the name of an entry point is that of the module that it is for, its
# value a subclass of `Framework`, which is loaded only once the program has imported that module.

_GROUP: Final = "disposescope.frameworks"


def _register_installed() -> None:
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=_GROUP):
        await_module(entry_point.name, partial(_load, entry_point))


def _load(entry_point: EntryPoint) -> None:
    try:
        framework: Any = entry_point.load()()
        if not isinstance(framework, Framework):
            raise TypeError(f"it is no {Framework.__qualname__}")
        _install(framework)
    except Exception as error:
        # Of another package: the program in whose scope it is met can do nothing about it.
        warn(
            f"scopes do not own what {entry_point.name} makes: the entry point of {_GROUP} for it, "
            f"{entry_point.value}, failed with {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        PATCHES.note_unwatched(f"{entry_point.name}: what it makes")


# The interpreter's own module is always there: packages are asked when the first scope is entered,
# not at our import.
await_module("sys", _register_installed)
install_at_import_while(lambda: innermost_scope() is not None or bool(HOOKS.listeners))


def _install(framework: Framework) -> None:
    add_library(framework.module.partition(".")[0], *framework.packages, module=type(framework).__module__)
    kinds = framework.kinds
    for device_type, current_index in framework.current_indices.items():
        set_current_index(device_type, current_index)
    for kind in kinds:
        add_kind(kind)
    if _overrides(framework, "keepers"):
        add_keepers(*framework.keepers)
    framework.install()
    # Each step may be taken again: after an interrupt all of them are.
    if _overrides(framework, "role_of_code"):
        add_role_of_code(framework.role_of_code)
    if _overrides(framework, "find_births"):
        for kind in kinds:
            find_births_with(kind.cls, cast("Finder", framework.find_births))
    if _overrides(framework, "scope_entered"):
        HOOKS.add("entered", framework.scope_entered)
    if _overrides(framework, "scope_left"):
        HOOKS.add("left", framework.scope_left)
    if _overrides(framework, "array_moved_out"):
        HOOKS.add("array_moved_out", framework.array_moved_out)
    if _overrides(framework, "children"):
        HOOKS.add("children", framework.children)
    FRAMEWORKS.add(framework)


def _overrides(framework: Framework, method: str) -> bool:
    """Return whether a framework overrides a method; others are never called."""
    return method in vars(framework) or getattr(type(framework), method) is not getattr(Framework, method)


KINDS.before_lookup = install_imported
