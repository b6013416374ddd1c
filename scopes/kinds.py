"""Kinds: how each type is released and measured; device names; and when optional libraries are installed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from operator import methodcaller
from types import ModuleType
from typing import Any, Final, TypeVar, cast, final

from .context import current_scope
from .forks import hold_across_forks
from .listeners import LISTENERS
from .options import Graphs

__all__ = [
    "ANCHORED",
    "AWAITED",
    "Kind",
    "Layout",
    "add_kind",
    "await_module",
    "device_name",
    "install_imported",
    "kind_of",
    "kind_of_type",
    "load_frameworks",
    "modules_seen",
    "mro_of",
    "name_of",
    "qualified_name",
    "register_kind",
    "set_current_index",
    "space_of",
    "when_imported",
    "when_watched",
]

# One spelling for each device, so that two handles of one device are equal.


_current_index: Final[dict[str, Callable[[], int]]] = {}


def set_current_index(device_type: str, current_index: Callable[[], int]) -> None:
    """Have a function tell the index that an unnumbered name of a device type ("cuda") stands for; 0 without one."""
    _current_index[device_type] = current_index


def device_name(device: object) -> str:
    """The one name of a device: its type, a colon, its index.

    Parameters
    ----------
    device : object
        A name (``"cpu"``, ``"cuda"``, ``"cuda:1"``), or any object whose ``str`` is one, such as
        ``torch.device``.

    Returns
    -------
    str
        ``"cpu:0"`` for ``"cpu"``; ``"cuda:<current>"`` for ``"cuda"``. Names are compared without
        regard to case.

    Raises
    ------
    ValueError
        The name is empty, or its index is not a number.

    Examples
    --------
    >>> device_name("cpu"), device_name("CPU:0"), device_name("meta")
    ('cpu:0', 'cpu:0', 'meta:0')
    """
    if type(device) is str and device == "cpu:0":
        return device
    name = str(device).strip().lower()
    kind, colon, index = name.partition(":")
    if not kind or (colon and not index.isdecimal()):
        raise ValueError(f"not a device name: {device!r}; a type and perhaps an index, as in 'cpu' or 'cuda:1'")
    if colon:
        return f"{kind}:{int(index)}"
    current = _current_index.get(kind)
    return f"{kind}:{0 if current is None else current()}"


# Optional frameworks, taught when the program has them: nothing is imported that the program did
# not import itself.


AWAITED: Final[dict[str, tuple[Callable[[], None], ...]]] = {}
"""For the name of a module that the program may import, what to do once it has."""

_teaching: Final = threading.RLock()
# What is taught begins to watch, and counts.
hold_across_forks(_teaching, 0)
_under_way: Final[set[str]] = set()

modules_seen: Final[list[int]] = [0]
"""How many modules there were at the last look: a scope looks again only when the number has changed."""


def await_module(name: str, teach: Callable[[], None]) -> None:
    """Call `teach` once, when the program has imported a module.

    That is when a scope is entered (or a type is met) after the import, or at its end where a scope
    is open then.
    """
    AWAITED[name] = (*AWAITED.get(name, ()), teach)
    modules_seen[0] = 0


_heard_of: Final[dict[str, tuple[Callable[[ModuleType], object], ...]]] = {}
"""For the name of a module that was not there, what to call with it at the end of its import, scope or none."""


def when_imported(name: str, watch: Callable[[Any], object]) -> None:
    """Call `watch` with a module: now where it is there, and otherwise as soon as the program imports it."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        _heard_of[name] = (*_heard_of.get(name, ()), watch)
        _watch_imports()
    else:
        watch(module)


_ROOT: Final = __name__.rpartition(".scopes.")[0]
_DETECTOR: Final = f"{_ROOT}.leaks.detector.watching"


@cache
def load_frameworks() -> None:
    """Import what teaches scopes tensors, once and by name: `scopes` and `leaks` know nothing of it."""
    for floor in ("tensors", "sequences"):
        import_module(f"{_ROOT}.{floor}")


def when_watched(teach: Callable[[], None]) -> None:
    """Call `teach` once, before the first leak detector opens: now where the module of detectors is loaded.

    What a framework has to tell a detector imports `leaks`, which a program without detectors never
    loads.
    """
    await_module(_DETECTOR, teach)
    if _DETECTOR in sys.modules:
        install_imported()


def install_imported() -> None:
    """Teach the library the frameworks that the program has imported since the last look.

    A framework is taught once. Who looks meanwhile, on another thread, waits until it is known.
    """
    seen = len(sys.modules)
    looked: set[str] = set()
    # What is taught may await more.
    while names := AWAITED.keys() - looked:
        looked |= names
        for name in names:
            module = sys.modules.get(name)
            # A module that is being imported is there already, half made: it is taught at a later
            # look.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                _teach(name)
            elif module is not None:
                seen = 0
    # Not before: until then others have to look, and to wait.
    modules_seen[0] = seen
    _watch_imports()


def _teach(name: str) -> None:
    with _teaching:
        if name in _under_way:
            # What is taught looks itself.
            return
        _under_way.add(name)
        try:
            taught = 0
            while taught < len(teachers := AWAITED.get(name, ())):
                taught += 1
                teachers[taught - 1]()
        finally:
            _under_way.discard(name)
            AWAITED.pop(name, None)


def _watch_imports() -> None:
    """See imports as long as a module is awaited: one may be imported while a scope is open."""
    is_wanted = bool(AWAITED or _heard_of)
    if is_wanted and _LOOKOUT not in sys.meta_path:
        sys.meta_path.insert(0, _LOOKOUT)
    elif not is_wanted and _LOOKOUT in sys.meta_path:
        sys.meta_path.remove(_LOOKOUT)


@final
class _Lookout:
    """Finds nothing, but sees the import of an awaited module where a scope is open, or births are watched.

    And that of a module which somebody shall hear of in any case: see `when_imported`.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that the other finders have for an awaited module, with a loader that tells when it is there."""
        is_taught = name in AWAITED and (current_scope() is not None or bool(LISTENERS))
        if not is_taught and name not in _heard_of:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if type(spec.loader) in (SourceFileLoader, SourcelessFileLoader):
                    _tell_when_executed(name, cast("SourceFileLoader", spec.loader), is_taught)
                return spec
        return None


def _tell_when_executed(name: str, loader: SourceFileLoader, is_taught: bool) -> None:
    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        for watch in _heard_of.pop(name, ()):
            watch(module)
        if is_taught:
            _teach(name)

    loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader


_LOOKOUT: Final = _Lookout()

# The registry of kinds: for each type, how it is released and what it weighs.
#
# The entry of a type is frozen. User code (``release``, ``nbytes``, ...) is never run while the
# registry changes.


C = TypeVar("C")

# Read from `type`: an attribute that is read from a class may run code of its metaclass.
mro_of: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
space_of: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
name_of: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__
_module_of: Final[Callable[[type], str]] = type.__dict__["__module__"].__get__

Members = Mapping[str, object] | Iterable[object]
Storages = Iterable[tuple[Hashable, int]]
Layout = tuple[tuple[int, ...], str, int]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the library treats the instances of one type.

    Attributes
    ----------
    cls : type
        The type; its subclasses are of the same kind unless they are registered themselves.
    name : str
        The word that messages and reports use.
    release : callable
        Releases one instance. Called at most once for each, and never while a lock is held.
    storages : callable
        The storages behind one instance, as pairs of a hashable identity and a number of bytes. An
        identity must hold as long as the instance is alive.
    device : callable
        The device of one instance; normalised by the caller.
    describe : callable
        Kind, shape, dtype and name in a few words; also for a released instance.
    members : callable, optional
        The members of a composite, by name or in order. A kind with members is a composite.
    is_disposed : callable, optional
        Asks the instance itself whether it has been released, where it knows.
    layout : callable, optional
        Shape, name of the dtype, and bytes of its own elements, of one live instance; fewer bytes
        than its storages have mean a view. None where that is unknown.
    graphs : Graphs, optional
        What to ask of the autograd graphs behind its instances, where they can carry one.
    memory : callable, optional
        What `Memory.move` takes for the memory of one instance, which changes its owner with the
        instance: the instance itself, where the arena may serve its elements, or what counts its
        bytes against budgets.
    anchor : callable, optional
        For a composite whose instances are tuples, which cannot be weakly referenced: the member
        whose identity stands for that of an instance. Two instances around one anchor are one
        resource.
    compact : callable, optional
        Gives one live instance memory of its own where it is a view that uses less than it pins:
        the same instance, with the same values. What others hold of the old memory stays as it is.
    inner : callable, optional
        Resources that one live instance is made of and that are resources of their own, where its
        class has such: what leaves a scope takes those along that the same scope owns. None of it
        for most instances.
    host_members : frozenset of str
        The names of members that are on the CPU wherever the others are.
    """

    cls: type
    name: str
    release: Callable[[Any], object]
    storages: Callable[[Any], Storages]
    device: Callable[[Any], object]
    describe: Callable[[Any], str]
    members: Callable[[Any], Members] | None = None
    is_disposed: Callable[[Any], bool] | None = None
    layout: Callable[[Any], Layout | None] | None = None
    graphs: Graphs | None = None
    memory: Callable[[Any], Iterable[object]] | None = None
    anchor: Callable[[Any], object] | None = None
    compact: Callable[[Any], object] | None = None
    inner: Callable[[Any], Iterable[object]] | None = None
    host_members: frozenset[str] = frozenset()


ANCHORED: Final[list[Kind]] = []
"""The kinds with an anchor: the paths of all others ask only whether there are any."""

_REGISTERED: Final[dict[type, Kind]] = {}
_BY_TYPE: dict[type, Kind | None] = {}
_REMEMBERED: Final = 4096


def kind_of(resource: object) -> Kind | None:
    """The kind of an object, or None where it is of no kind."""
    cls = type(resource)
    try:
        return _BY_TYPE[cls]
    except KeyError:
        return kind_of_type(cls)


def kind_of_type(cls: type) -> Kind | None:
    """The kind of a type's instances: its own, that of its nearest base, or that of any type with ``dispose()``."""
    found: Kind | None = None
    mro = mro_of(cls)
    if AWAITED:
        install_imported()
    for base in mro:
        found = _REGISTERED.get(base)
        if found is not None:
            break
    else:
        for base in mro:
            dispose: object = space_of(base).get("dispose")
            if dispose is not None:
                if callable(dispose):
                    found = _disposable(cls)
                break
    if len(_BY_TYPE) >= _REMEMBERED:
        # Types come and go (every mock has one of its own), and what is remembered lives on.
        _BY_TYPE.clear()
    _BY_TYPE[cls] = found
    return found


def add_kind(kind: Kind) -> None:
    """Put a kind into the registry; the last word for its type."""
    _REGISTERED[kind.cls] = kind
    if kind.anchor is not None:
        ANCHORED.append(kind)
    _BY_TYPE.clear()


def register_kind(
    cls: type[C],
    *,
    release: Callable[[C], object] | None = None,
    nbytes: Callable[[C], int] | None = None,
    device: Callable[[C], object] | None = None,
    members: Callable[[C], Members] | None = None,
) -> type[C]:
    """Teach the library a type of your own, so that scopes can own its instances.

    Parameters
    ----------
    cls : type
        The type. Its subclasses are of the same kind.
    release : callable, optional
        Releases one instance; called at most once for each. May be left out where the type has a
        method ``dispose()``, or where it has members and nothing else to release.
    nbytes : callable, optional
        The bytes behind one instance. 0 where left out, and for a composite the bytes of its
        members.
    device : callable, optional
        The device of one instance, as a name. ``"cpu"`` where left out, and for a composite that of
        its members.
    members : callable, optional
        The member tensors of one instance, as a mapping from names or as an iterable; nested
        containers are walked. The type is a composite then: it counts as one, and lives, moves and
        dies with its members. ``release`` is called before the members are released.

    Returns
    -------
    type
        `cls`, so that it can be used from a class decorator.

    Raises
    ------
    TypeError
        `cls` is not a class, an option is not callable, or nothing says how an instance is
        released.
    ValueError
        `cls` has been registered before.

    Examples
    --------
    >>> import disposescope as ds
    >>> class Batch:
    ...     def __init__(self, inputs, targets):
    ...         self.inputs, self.targets = inputs, targets
    >>> _ = ds.register_kind(Batch, members=lambda batch: {"inputs": batch.inputs, "targets": batch.targets})
    >>> with ds.dispose_scope() as scope:
    ...     batch = scope.attach(Batch(ds.zeros(3), ds.ones(3)))
    ...     len(scope)
    1
    >>> ds.is_disposed(batch.inputs)
    True
    """
    if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
        raise TypeError(f"register_kind: cls must be a class, not {cls!r}")
    for option, given in (("release", release), ("nbytes", nbytes), ("device", device), ("members", members)):
        if given is not None and not callable(given):
            raise TypeError(f"register_kind({cls.__qualname__}): {option} must be callable, not {given!r}")
    if cls in _REGISTERED:
        raise ValueError(f"register_kind: {qualified_name(cls)} is registered already; a type is registered once")
    if release is None:
        if callable(getattr(cls, "dispose", None)):
            release = _call_dispose
        elif members is not None:
            release = _nothing_of_its_own
        else:
            raise TypeError(
                f"register_kind: nothing says how to release a {qualified_name(cls)}; "
                "give release=..., or members=..., or the class a method dispose()"
            )
    add_kind(
        Kind(
            cls=cls,
            name=name_of(cls),
            release=release,
            storages=_no_storages if nbytes is None else _OwnStorage(nbytes),
            device=device if device is not None else _default_device,
            describe=_describe,
            members=members,
        )
    )
    return cls


def device_of(kind: Kind, resource: object) -> str:
    """The normalised device name of a resource."""
    return device_name(kind.device(resource))


@final
class _OwnStorage:
    """The storages of an instance that is a storage of its own."""

    __slots__ = ("_nbytes",)

    def __init__(self, nbytes: Callable[[Any], int]) -> None:
        self._nbytes = nbytes

    def __call__(self, resource: object) -> Storages:
        return ((id(resource), self._nbytes(resource)),)


def _no_storages(_resource: object) -> Storages:
    return ()


def _default_device(_resource: object) -> str:
    return "cpu:0"


def _describe(resource: object) -> str:
    return name_of(type(resource))


# Compiled: no interrupt comes up before the method of the resource has begun.
_call_dispose: Final[Callable[[Any], object]] = methodcaller("dispose")


def _nothing_of_its_own(_resource: object) -> None:
    """A composite that is only the sum of its members."""


def _disposable(cls: type) -> Kind:
    return Kind(
        cls=cls,
        name=name_of(cls),
        release=_call_dispose,
        storages=_no_storages,
        device=_default_device,
        describe=_describe,
    )


def qualified_name(cls: type) -> str:
    """The name of a class with that of its module."""
    return f"{_module_of(cls)}.{name_of(cls)}"
