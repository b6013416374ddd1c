"""The registry of kinds: for each type, how it is released and what it weighs.

The entry of a type is frozen. User code (``release``, ``nbytes``, ...) is never run while the registry changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from ._arrivals import AWAITED, look_for_arrivals
from ._devices import device_name
from ._graphs import Graphs

__all__ = ["ANCHORED", "Kind", "Layout", "add_kind", "kind_of", "kind_of_type", "register_kind"]

C = TypeVar("C")

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
        The storages behind one instance, as pairs of a hashable identity and a number of bytes. An identity must
        hold as long as the instance is alive.
    device : callable
        The device of one instance; normalised by the caller.
    describe : callable
        Kind, shape, dtype and name in a few words; also for a released instance.
    members : callable, optional
        The members of a composite, by name or in order. A kind with members is a composite.
    is_disposed : callable, optional
        Asks the instance itself whether it has been released, where it knows.
    layout : callable, optional
        Shape, name of the dtype, and bytes of its own elements, of one live instance; fewer bytes than its storages
        have mean a view. None where that is unknown.
    graphs : Graphs, optional
        What to ask of the autograd graphs behind its instances, where they can carry one.
    memory : callable, optional
        The plain arrays that hold the elements of one instance, where the arena may serve them, or what counts its
        bytes against budgets: it changes its owner with the instance. Empty for a released one.
    anchor : callable, optional
        For a composite whose instances are tuples, which cannot be weakly referenced: the member whose identity
        stands for that of an instance. Two instances around one anchor are one resource.
    compact : callable, optional
        Gives one live instance memory of its own where it is a view that uses less than it pins: the same instance,
        with the same values. What others hold of the old memory stays as it is.
    inner : callable, optional
        Resources that one live instance is made of and that are resources of their own, where its class has such: what
        leaves a scope takes those along that the same scope owns. None of it for most instances.
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
    # type.__mro__ and vars() only: looking up an attribute could run a metaclass's __getattr__.
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    if AWAITED:
        look_for_arrivals()
    for base in mro:
        found = _REGISTERED.get(base)
        if found is not None:
            break
    else:
        for base in mro:
            dispose: object = vars(base).get("dispose")
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
        Releases one instance; called at most once for each. May be left out where the type has a method ``dispose()``,
        or where it has members and nothing else to release.
    nbytes : callable, optional
        The bytes behind one instance. 0 where left out, and for a composite the bytes of its members.
    device : callable, optional
        The device of one instance, as a name. ``"cpu"`` where left out, and for a composite that of its members.
    members : callable, optional
        The member tensors of one instance, as a mapping from names or as an iterable; nested containers are walked.
        The type is a composite then: it counts as one, and lives, moves and dies with its members. ``release`` is
        called before the members are released.

    Returns
    -------
    type
        `cls`, so that it can be used from a class decorator.

    Raises
    ------
    TypeError
        `cls` is not a class, an option is not callable, or nothing says how an instance is released.
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
        raise ValueError(f"register_kind: {_qualified(cls)} is registered already; a type is registered once")
    if release is None:
        if callable(getattr(cls, "dispose", None)):
            release = _call_dispose
        elif members is not None:
            release = _nothing_of_its_own
        else:
            raise TypeError(
                f"register_kind: nothing says how to release a {_qualified(cls)}; "
                "give release=..., or members=..., or the class a method dispose()"
            )
    add_kind(
        Kind(
            cls=cls,
            name=cls.__qualname__,
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
    return type(resource).__qualname__


def _call_dispose(resource: Any) -> object:
    return resource.dispose()


def _nothing_of_its_own(_resource: object) -> None:
    """A composite that is only the sum of its members."""


def _disposable(cls: type) -> Kind:
    return Kind(
        cls=cls,
        name=cls.__qualname__,
        release=_call_dispose,
        storages=_no_storages,
        device=_default_device,
        describe=_describe,
    )


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
