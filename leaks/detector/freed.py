"""Why an object is alive: the shortest chains that hold it; and the check that it has been freed.

A model often stays because something holds a part of it: an optimizer its parameters, a saved
``state_dict`` their memory, a hook of another model one of its layers. So the search is for the
object, the modules in it, and the memory of its tensors, each by a chain that does not lead through
the object itself.
"""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, final

from ...scopes.base.errors import LeakError, LeakWarning
from ...scopes.base.process import bytes_text, install_imported, load_frameworks
from ...scopes.framework import FRAMEWORKS, Belonging
from ...scopes.identity import Entry
from ..holders.paths import display_name_of
from ..holders.references import framework_of, hide_types
from ..holders.roots import library_frames, library_roots, user_roots
from ..holders.search import Allowance, Garbage, Search
from ..report.report import OBJECT_LIMIT
from .collection import collection_paused

if TYPE_CHECKING:
    from types import TracebackType

    from ...scopes.framework import Escape
    from ..births.log import Subject

__all__ = [
    "AssertFreed",
    "WhyAlive",
    "assert_freed",
    "why_alive",
]

_CHAINS_SHOWN: Final = 8
"""So many chains `why_alive` returns at most."""
_PARTS_SEARCHED: Final = 2_000
"""So many parts of an object are searched for, the first ones."""
_INDICES: Final = re.compile(r"\[[^\[\]]*\]|:\d+")
_ToPart = tuple[str, str]
"""A chain, and the name of the part of the object that it leads to; empty for the object."""
_NOTHING: Final = "nothing that was found: code of an extension, or an expression that is being evaluated"


@final
class WhyAlive(tuple[str, ...]):
    """The chains that hold an object, the shortest first, each as the code that follows it.

    A tuple of strings, which shows itself with one chain a line.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"held by {chain}" for chain in self) or f"held by {_NOTHING}"

    __str__ = __repr__


def why_alive(thing: object, /, *, object_limit: int = OBJECT_LIMIT) -> WhyAlive:
    """Return the shortest chains that hold an object, from the variables that lead to it.

    For a module of PyTorch (or of another library whose framework says what a module has), chains
    to its parts are returned too: an optimizer may hold its parameters, a saved ``state_dict`` may
    hold their memory, and a hook may hold one of its layers. No chain leads through the module
    itself. Caches are named with the call that empties them. The caller's own variable is a holder
    too. Variables of libraries are searched as well, which takes about a second where PyTorch is
    imported.

    Parameters
    ----------
    thing : object
        Any object, also one that cannot be weakly referenced.
    object_limit : int, default 4_000_000
        How many objects the search reaches at most.

    Returns
    -------
    WhyAlive
        The chains: at most eight. Empty if no holder was found.

    Examples
    --------
    >>> import disposescope as ds
    >>> class Model:
    ...     pass
    >>> anchors = {"first": Model()}
    >>> ds.why_alive(anchors["first"])
    held by ...anchors...['first']
    """
    _install()
    parts = _belongings(thing)
    entry = _Object(thing) if type(thing).__weakrefoffset__ else _HeldObject(thing)
    del thing
    return _explain(entry, parts, object_limit)


def assert_freed(*things: object, collect: bool = True, object_limit: int = OBJECT_LIMIT) -> AssertFreed:
    """Return a check that some objects are freed: a context, or an object with ``check()``.

    It holds nothing: it refers weakly to the objects, the modules in them and the memory of their
    tensors. The check is made at the end of the block, or when ``check()`` is called. Drop your own
    variables before: ``del model`` in the block.

    Parameters
    ----------
    *things : object
        Models, optimizers, tensors, or any objects that can be weakly referenced.
    collect : bool, default True
        Whether the garbage collector runs before the check, where something is still there: then an
        object in a cycle that it frees counts as freed.
    object_limit : int, default 4_000_000
        How many objects the search for holders reaches at most.

    Returns
    -------
    AssertFreed
        Use it for one ``with`` statement, or keep it and call ``check()``. A `LeakWarning` says so
        if neither happened.

    Raises
    ------
    TypeError
        An object cannot be weakly referenced, or none is given.
    LeakError
        Raised by the check: something is still there. The message has the chains that hold it.

    Examples
    --------
    >>> import disposescope as ds
    >>> class Model:
    ...     pass
    >>> cache = []
    >>> model = Model()
    >>> with ds.assert_freed(model):
    ...     del model
    >>> model = Model()
    >>> cache.append(model)
    >>> freed = ds.assert_freed(model)
    >>> del model
    >>> freed.check()
    Traceback (most recent call last):
        ...
    disposescope.LeakError: Model is alive
      held by ...cache...[0]
    """
    if not things:
        raise TypeError("assert_freed: expected the objects that are to be freed, found none")
    for thing in things:
        if not type(thing).__weakrefoffset__:
            raise TypeError(
                f"assert_freed: a {type(thing).__qualname__} cannot be weakly referenced; give what it holds instead"
            )
    _install()
    return AssertFreed(things, collect, object_limit)


@final
class AssertFreed:
    """The check of `assert_freed`: a context, or an object with ``check()``."""

    __slots__ = ("_collect", "_object_limit", "_targets", "_used")

    def __init__(self, things: Sequence[object], collect: bool, object_limit: int) -> None:
        self._collect = collect
        self._object_limit = object_limit
        self._targets = [_Target(thing) for thing in things]
        self._used = False

    def __enter__(self) -> AssertFreed:
        if self._used:
            raise RuntimeError("assert_freed() is used for one with statement; write assert_freed(...) in each")
        self._used = True
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if exc_type is None:
            self.check()

    def check(self) -> None:
        """Raise `LeakError` if an object, a module in it, or memory of its tensors is left."""
        self._used = True
        if self._collect and any(target.is_there() for target in self._targets):
            gc.collect()
        left = [target for target in self._targets if target.is_there()]
        if left:
            texts = [target.text(self._object_limit) for target in left]
            raise LeakError("\n".join(texts), count=len(left), nbytes=sum(target.nbytes() for target in left))

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                "assert_freed() checked nothing: write `with assert_freed(model): del model`, or call check()",
                LeakWarning,
                stacklevel=2,
            )


class _Object(Entry):
    """A weak reference to any object, as the search for holders takes it."""

    __slots__ = ("_key",)

    def __new__(cls, thing: object) -> Self:
        return super().__new__(cls, thing)

    def __init__(self, thing: object) -> None:
        self._key = id(thing)

    @property
    def key(self) -> int:
        """Return the ``id`` of the object."""
        return self._key


class _Anchor:
    __slots__ = ("__weakref__",)


_ANCHOR: Final = _Anchor()


@final
class _HeldObject(_Object):
    """A strong reference to an object that cannot be weakly referenced, as the search takes it."""

    __slots__ = ("_thing",)

    def __new__(cls, thing: object) -> Self:
        # The base class needs an object that can be weakly referenced.
        return super().__new__(cls, _ANCHOR)

    def __init__(self, thing: object) -> None:
        super().__init__(thing)
        self._thing = thing

    def __call__(self) -> object:
        """Return the object."""
        return self._thing


@final
class _Target:
    """One object that is to be freed, with what belongs to it."""

    __slots__ = ("_display_name", "_entry", "_parts")

    def __init__(self, thing: object) -> None:
        known = framework_of(type(thing))
        described = None if known is None else known.framework.description_of(thing)
        self._display_name = described or display_name_of(thing)
        self._entry = _Object(thing)
        self._parts = _belongings(thing)

    def is_there(self) -> bool:
        return self._entry() is not None or any(part.is_there() for part in self._parts)

    def nbytes(self) -> int:
        return sum({part.identity: part.nbytes for part in self._parts if part.is_there()}.values())

    def text(self, object_limit: int) -> str:
        there = [part for part in self._parts if part.is_there()]
        chains = _explain(self._entry, there, object_limit)
        nbytes = self.nbytes()
        memory = f" with {bytes_text(nbytes)}" if nbytes else ""
        if self._entry() is not None:
            lines = [f"{self._display_name} is alive{memory}"]
        else:
            names = ", ".join(part.name for part in there[:3])
            more = f" and {len(there) - 3} more" if len(there) > 3 else ""
            lines = [f"{self._display_name} is gone, and parts of it are there{memory}: {names}{more}"]
        return "\n".join([*lines, *(f"  {line}" for line in repr(chains).splitlines())])


@final
class _Part:
    """A module in an object, or the memory of one of its tensors; this does not keep it alive."""

    __slots__ = ("_reference", "device", "escape", "identity", "kind", "name", "nbytes")

    def __init__(self, given: Belonging) -> None:
        self.kind = self.device = ""
        self.escape: Escape | None = None
        self.name = given.name
        self.identity: Hashable = None if given.memory is None else given.memory[0]
        self.nbytes = 0 if given.memory is None else given.memory[1]
        self._reference: weakref.ref[Any] = _Object(given.anchor) if given.memory is None else weakref.ref(given.anchor)

    def is_there(self) -> bool:
        return self._reference() is not None

    def subject(self) -> Subject:
        """Return the part as the search for holders takes it."""
        return self._reference if isinstance(self._reference, _Object) else self

    def __call__(self) -> object:
        return self if self.is_there() else None


hide_types(AssertFreed, _Anchor, _HeldObject, _Object, _Part, _Target)


def _install() -> None:
    load_frameworks()
    install_imported()
    FRAMEWORKS.record_pending()


def _belongings(thing: object) -> list[_Part]:
    known = framework_of(type(thing))
    return [] if known is None else [_Part(part) for part in known.framework.belongings(thing)]


def _explain(entry: _Object, parts: Sequence[_Part], object_limit: int) -> WhyAlive:
    """Return the chains to an object and its parts, none through the object or another part."""
    parts = parts[:_PARTS_SEARCHED]
    subjects: list[tuple[Subject, str]] = [(entry, ""), *((part.subject(), part.name) for part in parts)]
    opaque = {subject.key for subject, _ in subjects if isinstance(subject, _Object)}
    with collection_paused():
        wanted = [subject for subject, _ in subjects]
        search = Search(wanted, object_limit, {}, opaque=opaque, finds_all=True)
        try:
            # The search does not report variables where something else holds the object: add them
            # here. The variables that pytest makes for assertions, ``@py_assert1``, are not the
            # program's.
            chains = dict.fromkeys(
                (origin.text, "")
                for group in user_roots()
                for origin, thing in group
                # A key of a namespace may be something else than a string.
                if id(thing) == entry.key and not str(origin.variable).startswith("@")
            )
            search.from_roots(*user_roots(), libraries=False)
            if not search.stopped:
                search.from_roots(library_frames(), libraries=False)
            if not search.stopped:
                search.from_roots(library_roots(), libraries=True)
            chains |= _chains_in(search, subjects)
            thing = entry()
            if thing is not None and not chains and not search.stopped:
                cycle = Garbage(search.seen, Allowance(object_limit)).cycle_around(thing)
                if cycle is not None:
                    chains[str(cycle), ""] = None
        finally:
            search.close()
    return WhyAlive(_distinct(chains))


def _chains_in(search: Search, subjects: Sequence[tuple[Subject, str]]) -> dict[_ToPart, None]:
    return {(str(chain), name): None for subject, name in subjects for chain in search.ways.chains_of(subject)}


def _distinct(chains: Iterable[_ToPart]) -> list[str]:
    """Return the shortest chains; only the first of those that differ by an index or a part."""
    kept: dict[str, str] = {}
    for chain, name in sorted(chains, key=lambda pair: (pair[1] != "", pair[0].partition(" (")[0].count("."))):
        kept.setdefault(_INDICES.sub("[]", chain), f"{chain} (its {name.removeprefix('.')})" if name else chain)
    return list(kept.values())[:_CHAINS_SHOWN]
