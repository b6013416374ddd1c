"""The identity set of resources: one entry for each, which refers to it weakly and knows its owner.

Entries live in two tables by the resource's ``id``: `LIVE`, and `DEAD` for what was released and is still referenced
somewhere. An ``id`` is only ever believed together with the entry's weak reference, whose callback empties the slot
before the address can come back. An owner change, a release and a death each claim the entry with one atomic
``dict.pop``, so that no lock is needed and none is held while user code runs. `_releases` says why that is enough for
a resource to be released once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from ._kinds import ANCHORED, Kind, kind_of
from ._statistics import Ledger
from ._trees import LEAF_TYPES

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = [
    "AnchoredEntry",
    "DEAD",
    "Entry",
    "LIVE",
    "StrongEntry",
    "Token",
    "anchor_entry_of",
    "anchor_of",
    "dead_entry_of",
    "entry_of",
    "is_tracked",
    "owner_of_entry",
    "standing_of",
    "stands_for",
    "unit_of",
]


class Entry(ref[Any]):
    """A weak reference to a resource, with what the library knows of it. Compared by identity, unlike other references.

    Attributes
    ----------
    key : int
        The ``id`` of the resource.
    kind : Kind
        Its kind.
    owner : DisposeScope or None
        The one scope that will dispose it. None for a member: its unit has the owner.
    home : Ledger
        The ledger of the thread that it was born on.
    unit : Entry or None
        For a member, the entry of its composite.
    members : tuple of Entry
        For a composite, the entries of its members.
    counted : bool
        Whether its birth is in the statistics; a member's is not, unless it was born before its composite.
    """

    __slots__ = ("counted", "home", "key", "kind", "members", "owner", "unit")
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    key: int
    kind: Kind
    owner: DisposeScope | None
    home: Ledger
    unit: Entry | None
    members: tuple[Entry, ...]
    counted: bool

    def __reduce__(self) -> Any:
        raise TypeError("an entry of the identity set belongs to its process and cannot be pickled")


class StrongEntry(Entry):
    """The entry of an object that cannot be weakly referenced: it is held until it is released or detached."""

    # The weak reference underneath is to a token that lives as long as the entry.
    __slots__ = ("_held", "_token")

    _held: Any
    _token: Token

    def __call__(self) -> Any:
        return self._held


class Token:
    __slots__ = ("__weakref__",)


LEAF_TYPES.update((Entry, StrongEntry))

_tuple: Any = tuple

_reference: Any = ref


class AnchoredEntry(Entry):
    """The entry of a tuple, which cannot be weakly referenced: a weak reference to its anchor, and one to each element.

    The tuple that it gives back has the same elements; as long as all of them are alive, the tuple counts as alive.
    Its key is that of the anchor, inverted, because the anchor has an entry of its own.
    """

    __slots__ = ("_elements", "_type")

    _elements: tuple[ref[Any] | None, ...]
    _type: type[tuple[Any, ...]]

    def __call__(self) -> Any:
        elements: list[Any] = []
        for element in self._elements:
            found = None if element is None else element()
            if found is None and element is not None:
                return None
            elements.append(found)
        # Not the type's own __new__, which may take its elements one by one.
        return _tuple.__new__(self._type, elements)

    def anchor(self) -> Any:
        """The anchor, or None where it is gone."""
        return _reference.__call__(self)


LIVE: Final[dict[int, Entry]] = {}
"""Every resource that is alive and not released, members of composites included."""

DEAD: Final[dict[int, Entry]] = {}
"""Every resource that was released and is still referenced."""


def entry_of(resource: object) -> Entry | None:
    """The entry of a live resource, or None; that of a member is its own, not its composite's."""
    entry = LIVE.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    return _anchored_in(LIVE, resource) if ANCHORED else None


def dead_entry_of(resource: object) -> Entry | None:
    """The entry of a resource that was released and is still referenced, or None."""
    entry = DEAD.get(id(resource))
    if entry is not None and entry() is resource:
        return entry
    if ANCHORED:
        entry = _anchored_in(DEAD, resource)
        # Its anchor may have had another composite to live on in.
        if entry is not None and DEAD.get(id(entry.anchor())) is not None:
            return entry
    return None


def standing_of(resource: object) -> Entry | None:
    """The entry that tells the owner of a live resource: its own, or its anchor's where it is not known itself."""
    entry = entry_of(resource)
    if entry is None and ANCHORED:
        anchor = anchor_of(resource)
        entry = None if anchor is None else entry_of(anchor)
    return entry


def stands_for(entry: Entry, resource: object) -> bool:
    """Whether an entry is that of a resource, which the caller holds."""
    if isinstance(entry, AnchoredEntry):
        anchor = anchor_of(resource)
        return anchor is not None and entry.anchor() is anchor
    return entry() is resource


def is_tracked(thing: object) -> bool:
    """Whether an object is a live resource."""
    return entry_of(thing) is not None


def anchor_of(resource: object) -> object | None:
    """The member whose identity stands for that of a resource, or None where that is its own."""
    kind = kind_of(resource)
    return None if kind is None or kind.anchor is None else kind.anchor(resource)


def anchor_entry_of(entry: Entry) -> Entry:
    """The entry of the member whose identity stands for that of a resource, or its own entry."""
    if not isinstance(entry, AnchoredEntry):
        return entry
    return next((member for member in entry.members if member() is entry.anchor()), entry)


def _anchored_in(table: dict[int, Entry], resource: object) -> AnchoredEntry | None:
    anchor = anchor_of(resource)
    if anchor is not None:
        entry = table.get(~id(anchor))
        if isinstance(entry, AnchoredEntry) and entry.anchor() is anchor:
            return entry
    return None


def unit_of(entry: Entry) -> Entry:
    """The entry that stands for a resource: its own, or that of the outermost composite it is a member of."""
    while entry.unit is not None:
        entry = entry.unit
    return entry


def owner_of_entry(entry: Entry) -> DisposeScope | None:
    """The owner of a resource, or of the composite that it is a member of."""
    return unit_of(entry).owner
