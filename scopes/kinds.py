"""Kinds: how the instances of a type are released and measured. Device names, and `Graphs`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any, Final, Protocol, TypeVar, final, overload

from .base.type_cache import TypeCache

__all__ = [
    "KINDS",
    "MAPPED",
    "Kind",
    "Layout",
    "add_kind",
    "advice_for",
    "device_name",
    "find_births_with",
    "find_kind",
    "finder_of",
    "is_own",
    "kind_of",
    "kind_of_type",
    "module_of",
    "mro_of",
    "name_of",
    "qualified_name",
    "register_kind",
    "set_current_index",
    "space_of",
]

MAPPED: Final = "mapped"
"""The device of memory-mapped files: pages that the system drops when it is short of memory."""

# Device names: one spelling for each device, so that names can be compared.


_current_index: Final[dict[str, Callable[[], int]]] = {}


def set_current_index(device_type: str, current_index: Callable[[], int]) -> None:
    """Set the function that returns the index of the current device, for names such as "cuda".

    For a device type without such a function the index is 0.
    """
    _current_index[device_type] = current_index


def device_name(device: object) -> str:
    """Return the normalised name of a device: its type, a colon, its index.

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


# Autograd graphs.
#
# A tensor that is moved out may carry an autograd graph, and with it the memory of everything that
# the graph saved. Scopes know nothing of graphs: a kind whose instances can carry one implements
# `Graphs`.


class Cut(Protocol):
    """The removal of a graph: it can be undone until `finish` is called."""

    def finish(self) -> None:
        """Release the graph. Does not fail."""

    def undo(self) -> None:
        """Restore the graph. Does not fail."""


class Graphs(Protocol):
    """What scopes ask a kind about the graphs behind its instances. Called with live ones only."""

    def carried_by(self, resource: Any, /) -> bool:
        """Return whether an instance carries a graph. Every move calls this, so it is cheap."""
        ...

    def refusal(self, resource: Any, leaving: str, option: str, /) -> Exception:
        """Return the error about an instance that may not leave a scope with its graph.

        `leaving` says, for the message, which scope it was about to leave; `option` is the scope's
        `GraphOption`.
        """
        ...

    def cut(self, resource: Any, /) -> Cut:
        """Remove the graph of an instance, which stays the same object with the same values.

        If this raises, nothing was changed.
        """
        ...


# The registry of kinds. User code (``release``, ``nbytes``, ...) is never run while it changes.


C = TypeVar("C")

# These read attributes of a class. ``cls.__mro__`` itself may run code of the metaclass.
mro_of: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
space_of: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
name_of: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__
module_of: Final[Callable[[type], str]] = type.__dict__["__module__"].__get__

Members = Mapping[str, object] | Iterable[object]
Storages = Iterable[tuple[Hashable, int]]
"""Storages, each an identity and a number of bytes: see `Kind.storages`."""
Layout = tuple[tuple[int, ...], str, int]
"""The shape, the name of the dtype and the number of bytes of a tensor: see `Kind.layout`."""
Finder = Callable[[Any], object]
"""Records births that nobody saw yet, given a `DisposeScope`, or None for all scopes."""


class Kind:
    """How the library treats the instances of one type. Subclass it: each method has a default.

    Attributes
    ----------
    cls : type
        The type; its subclasses are of the same kind unless they are registered themselves.
    name : str
        The word that messages and reports use.
    graphs : Graphs or None
        Handles the autograd graphs of instances; None if they cannot carry one.
    host_members : frozenset of str
        The names of members that are always on the CPU, whatever device the others are on.
    is_composite, is_anchored : bool
        Whether the subclass overrides `members`, and `anchor`.
    is_held : bool
        Whether a scope holds an attached instance until it is released or kept, so that it is
        released even if nothing else refers to it. False for tensors, which are tracked weakly.

    Examples
    --------
    >>> import array
    >>> class ArrayKind(Kind):
    ...     cls = array.array
    ...     name = "array"
    ...
    ...     def release(self, resource):
    ...         del resource[:]
    ...
    ...     def storages(self, resource):
    ...         return [(id(resource), len(resource) * resource.itemsize)]
    """

    cls: type
    name: str
    graphs: Graphs | None = None
    host_members: frozenset[str] = frozenset()
    is_composite: bool = False
    is_anchored: bool = False
    is_held: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.is_composite = cls.members is not Kind.members
        cls.is_anchored = cls.anchor is not Kind.anchor

    def release(self, resource: Any, /) -> object:
        """Release one instance. Called at most once for each, and never while a lock is held.

        Does nothing unless it is overridden: a composite may be only the sum of its members.
        """

    def storages(self, resource: Any, /) -> Storages:
        """Return the storages behind one instance, each a hashable identity and a number of bytes.

        An identity must hold as long as the instance is alive. Views of one storage give the same
        one, so that its bytes count once.
        """
        return ()

    def device(self, resource: Any, /) -> object:
        """Return the device of one instance, or its name; the caller normalises it."""
        return "cpu:0"

    def describe(self, resource: Any, /) -> str:
        """Return kind, shape, dtype and name in a few words; also of a released instance."""
        thing: object = resource
        return name_of(type(thing))

    def members(self, resource: Any, /) -> Members:
        """Return the members of a composite, by name or in order. Overridden by composites only."""
        return ()

    def is_disposed(self, resource: Any, /) -> bool | None:
        """Return whether one instance is released; None if it cannot tell."""
        return None

    def layout(self, resource: Any, /) -> Layout | None:
        """Return the shape, the name of the dtype and the bytes of the elements of a live instance.

        An instance with fewer bytes than its storages is a view. None if the layout is unknown.
        """
        return None

    def memory(self, resource: Any, /) -> Iterable[object]:
        """Return the objects whose memory changes its owner with one instance, for `Memory.move`.

        That is the instance itself if the arena may have allocated its elements, or an object that
        counts its bytes against budgets.
        """
        return ()

    def anchor(self, resource: Any, /) -> object:
        """Return the member whose identity stands for that of one instance.

        For composites that are tuples, which cannot be weakly referenced. Two instances with the
        same anchor are one resource.
        """
        return None

    def library_references(self, resource: Any, /) -> int:
        """Return how many references to one live instance belong to its library.

        Such a reference, as that of a view to its base, does not hold the instance for the option
        ``escapes`` of scopes: a disposal does it no harm.
        """
        return 0

    def copy_compact(self, resource: Any, /) -> object:
        """Give one live instance memory of its own if it is a view that pins more than it uses.

        It stays the same object, with the same values. Other views of the old memory keep it.
        """
        return resource

    def inner(self, resource: Any, /) -> Iterable[object]:
        """Return the parts of one live instance that are independent resources. Most have none.

        When the instance leaves a scope, parts that the same scope owns leave with it.
        """
        return ()


@final
class _FunctionKind(Kind):
    """The kind of a type that `register_kind` was given functions for."""

    def __init__(
        self,
        cls: type,
        release: Callable[[Any], object],
        nbytes: Callable[[Any], int] | None = None,
        device: Callable[[Any], object] | None = None,
        members: Callable[[Any], Members] | None = None,
        *,
        weak: bool = False,
    ) -> None:
        self.cls = cls
        self.is_held = not weak and release is not _nothing_of_its_own
        self.name = name_of(cls)
        self.is_composite = members is not None
        self._nbytes = nbytes
        # Set as attributes of this instance, not called by methods, so that no interrupt can come
        # before the user's own code has begun.
        self.release = release  # type: ignore[method-assign]  # of this one instance
        if device is not None:
            self.device = device  # type: ignore[method-assign]  # likewise
        if members is not None:
            self.members = members  # type: ignore[method-assign]  # likewise

    def storages(self, resource: Any, /) -> Storages:
        """Return the instance as a storage of its own, where its bytes can be asked for."""
        return () if self._nbytes is None else ((id(resource), self._nbytes(resource)),)


@final
class _Kinds:
    """The registry of kinds. The one instance is `KINDS`.

    Attributes
    ----------
    anchored : tuple of type
        The types whose kinds have an anchor. Often empty, which spares other code a lookup.
    before_lookup : callable
        Called before the kind of a type is looked up for the first time. It installs the frameworks
        whose libraries have been imported: see `framework`.
    registered : dict
        By type, the kinds that were registered.
    by_type : TypeCache
        A cache of lookups: the kind of a type, that of a base class, or None.
    finders : dict
        By type, the `Finder` of a type whose births cannot all be seen when they happen.
    finder_by_type : TypeCache
        A cache of lookups in `finders`.
    """

    __slots__ = ("anchored", "before_lookup", "by_type", "finder_by_type", "finders", "registered")

    def __init__(self) -> None:
        self.anchored: tuple[type, ...] = ()
        self.before_lookup: Callable[[], object] = lambda: None
        self.registered: dict[type, Kind] = {}
        self.by_type: TypeCache[Kind | None] = TypeCache()
        self.finders: dict[type, Finder] = {}
        self.finder_by_type: TypeCache[Finder | None] = TypeCache()


KINDS: Final = _Kinds()


def kind_of(resource: object) -> Kind | None:
    """Return the kind of an object, or None."""
    cls = type(resource)
    try:
        return KINDS.by_type.known[id(cls)]
    except KeyError:
        return kind_of_type(cls)


def kind_of_type(cls: type) -> Kind | None:
    """Return the kind of a type's instances, or None.

    It is the type's own, that of its nearest base, or that of types with ``dispose()``.
    """
    KINDS.before_lookup()
    found = find_kind(cls)
    KINDS.by_type.remember(cls, found)
    return found


def find_kind(cls: type) -> Kind | None:
    """Return what `kind_of_type` does, without caching it."""
    mro = mro_of(cls)
    for base in mro:
        # A class whose metaclass gives it no hash cannot be registered.
        hashed: Any = getattr(type(base), "__hash__", None)
        found = None if hashed is None else KINDS.registered.get(base)
        if found is not None:
            return found
    for base in mro:
        dispose: object = space_of(base).get("dispose")
        if dispose is not None:
            return _FunctionKind(cls, _call_dispose) if callable(dispose) else None
    return None


def add_kind(kind: Kind) -> None:
    """Register a kind; it replaces an earlier one of its type."""
    KINDS.registered[kind.cls] = kind
    if kind.is_anchored and kind.cls not in KINDS.anchored:
        KINDS.anchored += (kind.cls,)
    KINDS.by_type.clear()


def find_births_with(cls: type, finder: Finder) -> None:
    """Set the function that records a type's unseen births: see `identity.find_births_of`."""
    KINDS.finders[cls] = finder
    KINDS.finder_by_type.clear()


def finder_of(resource: object) -> Finder | None:
    """Return the `Finder` of an object's type or of a base class; None if there is none."""
    cls = type(resource)
    try:
        return KINDS.finder_by_type.known[id(cls)]
    except KeyError:
        # Compared by identity, because a metaclass may give a class no hash.
        found = next((finder for base in mro_of(cls) for known, finder in KINDS.finders.items() if known is base), None)
        KINDS.finder_by_type.remember(cls, found)
        return found


class _ClassDecorator(Protocol):
    def __call__(self, cls: type[C], /) -> type[C]: ...


@overload
def register_kind(
    cls: type[C],
    *,
    release: Callable[[C], object] | None = None,
    nbytes: Callable[[C], int] | None = None,
    device: Callable[[C], object] | None = None,
    members: Callable[[C], Members] | None = None,
    weak: bool = False,
) -> type[C]: ...
@overload
def register_kind(
    cls: None = None,
    *,
    release: Callable[[Any], object] | None = None,
    nbytes: Callable[[Any], int] | None = None,
    device: Callable[[Any], object] | None = None,
    members: Callable[[Any], Members] | None = None,
    weak: bool = False,
) -> _ClassDecorator: ...


def register_kind(
    cls: type[Any] | None = None,
    *,
    release: Callable[[Any], object] | None = None,
    nbytes: Callable[[Any], int] | None = None,
    device: Callable[[Any], object] | None = None,
    members: Callable[[Any], Members] | None = None,
    weak: bool = False,
) -> type[Any] | _ClassDecorator:
    """Teach the library a type of your own, so that scopes can own its instances.

    Also a class decorator: ``@register_kind``, or ``@register_kind(release=...)``. An instance that
    is attached is held by its scope until it is released or kept, so that
    ``scope.attach(Handle())`` needs no variable. A scope does not hold a composite that has nothing
    to release except its members.

    Parameters
    ----------
    cls : type, optional
        The type. Its subclasses are of the same kind. Left out in a decorator with options.
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
    weak : bool, default False
        Do not hold what is attached: for types that free themselves when their last reference dies.

    Returns
    -------
    type
        `cls` itself; without `cls`, a decorator that returns the class it is given.

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
    >>> _ = ds.register_kind(
    ...     Batch, members=lambda batch: {"inputs": batch.inputs, "targets": batch.targets}
    ... )
    >>> with ds.dispose_scope() as scope:
    ...     batch = scope.attach(Batch(ds.zeros(3), ds.ones(3)))
    ...     len(scope)
    1
    >>> ds.is_disposed(batch.inputs)
    True
    >>> @ds.register_kind(release=lambda handle: print("closed", handle.number))
    ... class Handle:
    ...     def __init__(self, number):
    ...         self.number = number
    >>> with ds.dispose_scope() as scope:
    ...     _ = scope.attach(Handle(7))
    closed 7
    """
    if cls is None:
        return partial(register_kind, release=release, nbytes=nbytes, device=device, members=members, weak=weak)
    if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
        raise TypeError(f"register_kind: cls must be a class, not {cls!r}")
    for option, given in (("release", release), ("nbytes", nbytes), ("device", device), ("members", members)):
        if given is not None and not callable(given):
            raise TypeError(f"register_kind({cls.__qualname__}): {option} must be callable, not {given!r}")
    if cls in KINDS.registered:
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
    add_kind(_FunctionKind(cls, release, nbytes, device, members, weak=weak))
    return cls


# A compiled callable, so that no interrupt can come before the method of the resource has begun.
_call_dispose: Final[Callable[[Any], object]] = methodcaller("dispose")


def _nothing_of_its_own(_resource: object) -> None:
    """Release nothing: the composite is only the sum of its members."""


_flags_of: Final[Callable[[type], int]] = type.__dict__["__flags__"].__get__
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_OF_PYTHON: Final = frozenset({"builtins", "functools", "types"})
"""Modules of Python whose classes nobody registers: they are values and functions."""


def is_own(cls: type) -> bool:
    """Return whether a user may register a type: it is none of Python's values and functions."""
    return bool(_flags_of(cls) & _HEAP_TYPE) and module_of(cls) not in _OF_PYTHON and not issubclass(cls, type)


def advice_for(cls: type) -> str:
    """Return advice, for an error message, about an object that is no resource."""
    name = name_of(cls).rpartition("<locals>.")[2]
    if any(callable(space_of(base).get("close")) for base in mro_of(cls)) and module_of(cls) not in _OF_PYTHON:
        return (
            "close it with contextlib.closing(), or teach its type: "
            f"disposescope.register_kind({name}, release={name}.close)"
        )
    if is_own(cls):
        return (
            f"teach its type with disposescope.register_kind({name}, release=...), or members=... where it is made of "
            "tensors, or give it a method dispose()"
        )
    return "scopes own tensors, composites of them, and objects that can be released"


def qualified_name(cls: type) -> str:
    """Return the name of a class with its module."""
    return f"{module_of(cls)}.{name_of(cls)}"
