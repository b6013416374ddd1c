"""The interface between libraries of tensors and scopes: one `Framework` for each library.

A framework tells scopes the types of one library: how their instances are released and measured
(`Kind`), how scopes learn of births, and what the rest of this package asks about the library. It
imports nothing: it is installed once the program itself has imported the library.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import itemgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar, cast, final

from .base.process import (
    PATCHES,
    await_module,
    hold_across_forks,
    install_at_import_while,
    install_imported,
    warn_without_raising,
)
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
"""A tensor, a node of an autograd graph, or a module, which holds tensors and other modules."""

Escape = Literal["due", "disposed"]
"""How memory escaped: it outlived its scope ("due"), or its disposed tensor ("disposed")."""

_F = TypeVar("_F", bound=Callable[..., Any])
_RECORDING: Final[set[CodeType]] = set()
"""The code of functions that are marked by `recording`."""


def recording(function: _F) -> _F:
    """Mark a function of an adapter that does nothing but call the library and record births.

    Live memory may be inspected while it runs: it holds no lock and changes nothing halfway.
    """
    _RECORDING.add(cast("FunctionType", function).__code__)
    return function


def only_records(code: CodeType) -> bool:
    """Return whether code belongs to a function that is marked by `recording`."""
    return code in _RECORDING


MemoryFacts = tuple[Hashable, int]
"""The identity of a storage, as `Kind.storages` returns it, and its bytes."""


class HeldMemory(NamedTuple):
    """A storage that an object keeps alive.

    Attributes
    ----------
    step : str
        How code reaches the storage from the object; empty for a tensor's own storage.
    identity : hashable
        Its identity, as `Kind.storages` returns it.
    used_nbytes : int
        How many of its bytes the object uses.
    """

    step: str
    identity: Hashable
    used_nbytes: int


class ModelFacts(NamedTuple):
    """What reports say about a model besides its bytes.

    Attributes
    ----------
    name : str
        What a report calls it, such as ``"Linear(512, 512)"``.
    device : str
        The name of the device of its first parameter or buffer.
    parts : int
        How many modules, parameters and buffers it has.
    storages : tuple of (hashable, int)
        The identities of its memory, as `Kind.storages` gives them for its tensors, with the bytes.
        Memory that it shares with a model that was not recorded is left out.
    is_added : bool
        Whether it was added to another model, as a part, after that model was made.
    """

    name: str
    device: str
    parts: int
    storages: tuple[MemoryFacts, ...]
    is_added: bool = False


class LiveMemory(NamedTuple):
    """Recorded memory of a log, and functions that tell what is alive: `Framework.live_memory`.

    Attributes
    ----------
    kind : str
        The name of the kind that the memory was born as. Rows of other kinds are left out.
    references, rows : sequence
        What the log recorded: see `BirthLog.recorded_memory`.
    identify : callable, optional
        Given the referent of a reference, returns its identity and its bytes, or None if its memory
        is gone. If left out, the references are identities themselves.
    lives : callable
        Given a reference and the number of its birth, returns whether the memory is alive.
    escape : callable, optional
        Given the memory (with the attribute `identity`) and its reference, returns how it has
        escaped; None if it has not.
    describe : callable, optional
        Given a model, returns what reports say about it.
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
    """Finds the recorded memory of a library by an address in it: see `Framework.identity_at`.

    Parameters
    ----------
    span_of : callable
        Given an object that the log has recorded, returns the addresses where its memory begins and
        ends; None if the memory is gone or belongs to another library.
    """

    def __init__(self, span_of: Callable[[Any], tuple[int, int] | None]) -> None:
        self._span_of = span_of
        # The addresses where the recorded memory begins, ascending; and, in the same order, where
        # it ends and a reference to its object.
        self._starts: list[int] = []
        self._ends: list[tuple[int, Callable[[], Any]]] = []
        # The number of the last birth when the lists were made.
        self._births = -1

    def at(self, address: int, log: BirthLog) -> Any:
        """Return the object that the log has recorded at an address, or None."""
        births, *_ = log.counts()
        if births != self._births:
            self._look_up(log, births)
        place = bisect_right(self._starts, address) - 1
        end, reference = self._ends[place] if place >= 0 else (0, None)
        return reference() if reference is not None and address < end else None

    def _look_up(self, log: BirthLog, births: int) -> None:
        spans: list[tuple[int, int, Callable[[], Any]]] = []
        references, _ = log.recorded_memory(0, births)
        for reference in references:
            thing = reference()
            span = None if thing is None else self._span_of(thing)
            if span is not None:
                spans.append((*span, reference))
        spans.sort(key=itemgetter(0))
        self._starts = [start for start, _, _ in spans]
        self._ends = [(end, reference) for _, end, reference in spans]
        self._births = births


class Belonging(NamedTuple):
    """A part of a module, or the memory of a tensor: see `Framework.belongings`.

    Attributes
    ----------
    name : str
        How code reaches it from the module, such as ``".encoder.weight"``; empty for the memory of
        a tensor.
    anchor : object
        An object that lives as long: the part itself, or the storage.
    memory : MemoryFacts or None
        For memory, its identity and its bytes; None for a module.
    """

    name: str
    anchor: object
    memory: MemoryFacts | None


class LibraryCache(NamedTuple):
    """A cache of the library that may hold a program's tensors, for reports about holders.

    Attributes
    ----------
    start : str
        A regular expression that matches the beginning of a chain of holders through the cache.
    name : str
        What reports call it: "a cache of torch.compile".
    empty : str
        The call that empties it, as text.
    """

    start: str
    name: str
    empty: str


class BirthLog(Protocol):
    """The methods of the birth log that frameworks use while a detector is open."""

    def counts(self) -> tuple[int, int, int, int]:
        """Return the number of the last birth, of passes, of closed scopes and of known births."""
        ...

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
        """Say what is recorded at births of a kind. Without it: the instance, with its storages.

        Parameters
        ----------
        kind, name : Kind, str
            The kind, and the name that reports use for it.
        weigh : callable, optional
            Returns the bytes of an instance, in one quick call, instead of its storages.
        memory : callable, optional
            Returns the object that stands for the memory of an instance and lives as long. Its
            birth is recorded, and none of the instance.
        device : str
            The device of all instances, used only with `weigh`.
        backed : bool
            Whether the bytes of an instance lie in memory that has a birth of its own.
        """
        ...

    def record_owner(self, owner: object, op: str | None, kind: str, device: str, frames: int, /) -> bool:
        """Record that an object that owns memory, such as a model, was made.

        Return whether the log knows the object now.

        Parameters
        ----------
        owner : object
            The object. The log refers to it weakly.
        op : str, optional
            The name of the call that made it. Two calls on one line are counted separately.
        kind, device : str
            As for `record_memory`. The bytes are asked for when a report is made.
        frames : int
            How many of the innermost frames belong to the making of the object. Its line is the one
            of the next frame outside.
        """
        ...

    def record_memory(self, anchor: object, op: str | None, nbytes: int, kind: str, device: str, /) -> bool:
        """Record that memory was born, at the line of the caller.

        Return whether the log knows the memory now.

        Parameters
        ----------
        anchor : object
            An object that stands for the memory and lives as long. The log refers to it weakly.
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
        """Leave memory out of reports from now on: it belongs to a model.

        Return whether it was in reports until now.
        """
        ...

    def recorded_memory(self, after: int, until: int, /) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return what was recorded for births with numbers above `after`, up to `until`.

        The first sequence has weak references to the anchors, the second the rows of the log.
        """
        ...


class LifeLog(Protocol):
    """A recording of births and deaths of memory in their order, to find the peak of memory."""

    def note(self, nbytes: int, /) -> int | None:
        """Record that memory is born, at the line of the caller.

        Return the number of the birth; None if the recording has ended or is full.

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
    """A `LifeLog` of the whole process, which can be ended and read."""

    @property
    def time(self) -> int:
        """How many births are recorded."""
        ...

    def end(self) -> object:
        """Record no more."""
        ...

    def births(self) -> list[tuple[int, int, int, int, tuple[Mark, ...]]]:
        """Return bytes, death, outcome, slot and places of each birth: see `leaks.peaks.recording`.

        Called after `end`.
        """
        ...


class Framework:
    """How scopes and detectors deal with one library. Subclass it, and `register` one instance.

    Every method has a default that does nothing. A method that is not overridden is never called.

    Attributes
    ----------
    module : str
        The name of the library's top module, such as ``"torch"``. The framework is installed after
        the program has imported the module: when the next scope is entered or, if a scope is open,
        at the end of the import.
    packages : sequence of str
        Top packages of the library besides that of `module`. Lines in these packages are no birth
        sites; the lines that call them are.

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
        """Classes whose objects keep the tensors that they hold: see `disposescope.keeps`."""
        return ()

    @property
    def current_indices(self) -> Mapping[str, Callable[[], int]]:
        """By device type ("cuda"), functions that return the index of the current device."""
        return {}

    def install(self) -> None:
        """Install what is needed to see births, such as hooks and patches.

        Called once, after the kinds have been registered.
        """

    def scope_entered(self, scope: DisposeScope, /) -> object:
        """Called when a scope was entered, in its thread."""

    def scope_left(self, scope: DisposeScope, /) -> object:
        """Called when a scope is left or closed, before it releases what it owns.

        Called once, except for a scope with ``graph="none"`` or ``"refuse"``. For such a scope it
        is called again when the block is left after the scope was closed; and both `scope_left` and
        `scope_entered` are called around each suspension of a generator or coroutine that the scope
        decorates.
        """

    def find_births(self, scope: DisposeScope | None, /) -> object:
        """Record births that could not be seen when they happened.

        Called before resources are counted or listed, and before a verb acts on an instance of one
        of the kinds; at no other time.

        Parameters
        ----------
        scope : DisposeScope or None
            The scope that is asked about; None for all.
        """

    def children(self, node: Any, /) -> Iterator[tuple[str, object]] | None:
        """Return what an object of the library holds, labelled as code would reach it.

        None for a resource, and for objects of other libraries. It must run no code of the program.
        """
        return None

    def array_moved_out(self, array: object, /) -> object:
        """Called when a plain array was moved out of a scope, whatever allocated its memory."""

    def role_of_code(self, code: CodeType, module: str, /) -> Role | None:
        """Return the role of the library's or adapter's code; None where `Role.LIBRARY` is right.

        Called once for each code object, with the name of its module. Also called for code without
        a file, such as code that a library generates while the program runs: None means then that
        it is the program's.
        """
        return None

    # What a leak detector asks. Births of resources it sees without these methods.

    reported_by_memory: Sequence[Kind] = ()
    """The kinds whose memory is recorded in the log instead of their resources: see `anchor_of`."""

    def start_watching(self, log: BirthLog, /) -> object:
        """Record births of memory on this thread from now on, inside of scopes and outside.

        Called when the first detector opens, and then on each thread that runs meanwhile.
        """

    def stop_watching(self) -> object:
        """Stop recording: the last detector closes."""

    def record_pending(self) -> object:
        """Record the births that were seen and are not in the log yet."""

    def anchor_of(self, entry: Entry, /) -> object | None:
        """Return the object that stands for a resource's memory in the log.

        None if the resource itself does.
        """
        return None

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the memory born with numbers above `after`, up to `until`, that may be alive."""
        return None

    def live_models(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the models made in the births above `after`, up to `until`.

        The bytes of a model are those of all its tensors.
        """
        return None

    def disposing(self, entry: Entry, owner: DisposeScope | None, /) -> object:
        """Called before a resource is disposed: memory of it that stays in use has escaped."""

    def cached_nbytes(self) -> int:
        """Return the bytes that the library's allocator has cached for later use.

        It must not initialise a device.
        """
        return 0

    def borrowed_addresses(self) -> Iterable[int]:
        """Return addresses of recorded memory that others allocated, such as that of an array."""
        return ()

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the identity of the library's recorded memory that an address lies in, or None."""
        return None

    # What the search for the peak of memory asks.

    def record_lives(self, most_births: int, /) -> LifeRecording | None:
        """Return a recording of what the library allocates and frees from now on.

        It includes births outside of scopes. A detector is open meanwhile.

        Parameters
        ----------
        most_births : int
            The largest number of births to record.
        """
        return None

    def note_lives(self, lives: LifeLog, /) -> Callable[[], object] | None:
        """Add births and deaths of library memory on this thread to a recording from now on.

        Returns
        -------
        callable or None
            A function that ends this, to be called on the same thread.
        """
        return None

    # What the search for holders asks. These methods run no code of the program and change nothing.

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context for the calls below, which hooks and modes of the library do not see.

        If operations of other threads make it unsafe to look at the library's objects, the context
        waits for their end.
        """
        return nullcontext()

    def part_of(self, cls: type, /) -> Part | None:
        """Return whether a type's instances are tensors, nodes or modules; None for other types."""
        return None

    def references(self, thing: Any, /) -> Sequence[tuple[str, object]]:
        """Return what an object holds that the garbage collector does not see.

        Each is labelled as code would reach it.
        """
        return ()

    def memory_of(self, thing: Any, /) -> Sequence[HeldMemory]:
        """Return the storages that an object keeps alive."""
        return ()

    def belongings(self, thing: Any, /) -> Sequence[Belonging]:
        """Return the modules in a module and the memory of its tensors, or a tensor's memory."""
        return ()

    def description_of(self, thing: Any, /) -> str | None:
        """Return what reports call a module, such as ``"Linear(512, 512)"``; None for others."""
        return None

    caches: Sequence[LibraryCache] = ()
    """Caches of the library that may hold a program's tensors."""

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the identity of the storage of a tensor that refers to nothing else, or None."""
        return None

    def steps_behind(self, tensor: Any, /) -> int:
        """Return in how many steps of a loop a tensor's graph was made; 0 if that is unknown.

        Also 0 if the graph was made in few steps and a backward pass can still go through it: it is
        probably waiting for that pass.
        """
        return 0

    def step_of_graph(self, tensor: Any, /) -> tuple[float, bool] | None:
        """Return when a graph was made, as a fraction of all steps, and whether it is spent.

        A graph is spent if no backward pass can go through it any more, because its saved tensors
        were freed or changed in place. None if the steps are unknown.
        """
        return None

    def graph_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return the bytes saved by the graphs of tensors, each storage once; 0 if unknown."""
        return 0

    def node_nbytes_behind(self, tensors: Sequence[Any], /) -> int:
        """Return an estimate of the bytes of the nodes in the last tensor's graph; 0 if unknown.

        A node takes memory also after its saved tensors were freed. Nodes that the graphs of the
        other tensors have as well do not count.
        """
        return 0

    def evaluations_behind(self, tensor: Any, /) -> int:
        """Return how many times the graph of a tensor uses the same leaf; 0 if that is unknown."""
        return 0

    def is_of_evaluation(self, holders: Sequence[object], part: Any, /) -> bool:
        """Return whether a graph was made by a model in eval mode.

        Parameters
        ----------
        holders : sequence of object
            The chain of holders of the graph, each of which holds the next one.
        part : object
            The tensor or node where the graph begins.
        """
        return False

    def graph_walked(self, nodes: dict[int, Any], edges: dict[int, list[int]], /) -> object:
        """Called when nodes of a graph were walked.

        Parameters
        ----------
        nodes : dict of int to node
            By ``id``, the nodes.
        edges : dict of int to list of int
            By the ``id`` of a node, the ids of the objects that it refers to.
        """


@final
class Frameworks:
    """The frameworks that are installed. The one instance is `FRAMEWORKS`."""

    def __init__(self) -> None:
        self._installed: tuple[Framework, ...] = ()
        self._with_own: dict[str, tuple[Framework, ...]] = {}
        self._after_install: tuple[Callable[[], object], ...] = ()
        self._log: BirthLog | None = None
        # The frameworks whose `start_watching` has been called.
        self._watching: tuple[Framework, ...] = ()
        # A framework may be installed while another thread opens or closes a detector.
        self._lock: Final = threading.RLock()
        hold_across_forks(self._lock, 2)

    def with_own(self, method: str) -> tuple[Framework, ...]:
        """Return the frameworks that override a method, in the order of their installation."""
        try:
            return self._with_own[method]
        except KeyError:
            found = tuple(framework for framework in self._installed if _overrides(framework, method))
            self._with_own[method] = found
            return found

    def identity_at(self, address: int, asking: Framework | None) -> Hashable | None:
        """Return the identity that any framework except `asking` has for an address, or None."""
        for framework in self.with_own("identity_at"):
            identity = None if framework is asking else framework.identity_at(address)
            if identity is not None:
                return identity
        return None

    def that_watch(self, method: str) -> list[Framework]:
        """Return the frameworks that override a method and have begun to watch.

        Another thread may be about to install or to start one.
        """
        watching = self._watching
        return [framework for framework in self.with_own(method) if framework in watching]

    def after_install(self, function: Callable[[], object]) -> None:
        """Call a function whenever a framework has been installed."""
        self._after_install += (function,)

    def add(self, framework: Framework) -> None:
        """Add an installed framework, once. If a detector is open, it watches from now on."""
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
        """Have all frameworks record births on this thread, including those installed later."""
        with self._lock:
            self._log = log
            for framework in self.with_own("start_watching"):
                framework.start_watching(log)
            self._watching = self._installed

    def stop_watching(self) -> None:
        """Have all frameworks stop recording births."""
        with self._lock:
            self._log = None
            self._watching = ()
            for framework in self.with_own("stop_watching"):
                framework.stop_watching()

    def record_pending(self) -> None:
        """Have all frameworks record the births that they have seen."""
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
    if framework.module in sys.modules and HOOKS.listeners:
        # Nothing looks before the next scope, and a detector would miss what is made until then.
        install_imported()


def register_lazily(module: str, load: Callable[[], Framework | None]) -> None:
    """Make and install a framework once the program has imported a module.

    For a framework whose own module imports the library.

    Parameters
    ----------
    module : str
        The name of the library's top module.
    load : callable
        Makes the framework; returns None if there is nothing to install. Called again after an
        interrupt.
    """

    def install() -> None:
        try:
            framework = load()
            if framework is not None:
                _install(framework)
        except Exception as error:
            _warn_of(module, f"its framework could not be installed: {type(error).__name__}: {error}")

    await_module(module, install)


def _install_or_say(module: str, install: Callable[[], None]) -> None:
    """Install a framework. If that fails, the exception and later reports say what is not seen."""
    try:
        install()
    except Exception as error:
        error.add_note(
            f"scopes do not own what {module} makes: its framework could not be installed, and is not tried again"
        )
        PATCHES.note_unwatched(f"{module}: what it makes")
        raise


# Frameworks of other packages. The name of the entry point is the name of a library's module, its
# value a subclass of `Framework`. It is loaded only once the program has imported that module.

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
        # Only a warning: the failure is that of another package, and the program cannot help it.
        _warn_of(
            entry_point.name,
            f"the entry point of {_GROUP} for it, {entry_point.value}, failed with {type(error).__name__}: {error}",
        )


def _warn_of(module: str, why: str) -> None:
    """Warn, and note for reports, that scopes do not own what a library makes."""
    warn_without_raising(f"scopes do not own what {module} makes: {why}")
    PATCHES.note_unwatched(f"{module}: what it makes")


# The module sys is always imported, so that this runs when the first scope is entered, and not when
# this package is imported.
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
    # After an interrupt all steps are repeated, so each of them can be.
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
    """Return whether a framework overrides a method."""
    return method in vars(framework) or getattr(type(framework), method) is not getattr(Framework, method)


KINDS.before_lookup = install_imported
