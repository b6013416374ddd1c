"""What a resource is made of: its members, and the storages, arrays and devices behind all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ._devices import device_name
from ._entry import LIVE, Entry, is_tracked
from ._kinds import Kind
from ._trees import resources_in

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["arrays_of", "device_of_entry", "named_members", "parts_of", "storages_of"]


def parts_of(entry: Entry) -> Iterator[tuple[Entry, Any]]:
    """A live resource and its members, and theirs, each with its entry."""
    pending = [entry]
    while pending:
        part = pending.pop()
        if part.members:
            pending.extend(part.members)
        if part is not entry and LIVE.get(part.key) is not part:
            continue
        resource = part()
        if resource is not None:
            yield part, resource


def storages_of(entry: Entry, found: dict[Hashable, int]) -> None:
    """Add the storages behind a live resource and its members to `found`; a storage met twice is counted once."""
    for part, resource in parts_of(entry):
        for identity, nbytes in part.kind.storages(resource):
            found[identity] = nbytes


def arrays_of(entry: Entry) -> list[object]:
    """The plain arrays that hold the elements of a live resource and of its members."""
    return [
        array
        for part, resource in parts_of(entry)
        if part.kind.memory is not None
        for array in part.kind.memory(resource)
    ]


def device_of_entry(entry: Entry) -> str:
    """The normalised device name of a resource; that of a composite is its first member's."""
    part: Entry | None = entry
    while part is not None:
        entry = part
        part = next((member for member in part.members if member() is not None), None)
    return device_name(entry.kind.device(entry()))


def named_members(resource: object, kind: Kind) -> Iterator[tuple[str, object]]:
    """The member resources of a composite, each with the name that messages use; containers among them are walked."""
    given: Mapping[str, object] | Iterable[object] = kind.members(resource) if kind.members is not None else ()
    pairs: Iterable[tuple[object, object]] = (
        cast("Mapping[object, object]", given).items() if isinstance(given, Mapping) else enumerate(given)
    )
    for name, member in pairs:
        for index, found in enumerate(resources_in(member, is_tracked, f"member {name} of a {kind.name}")):
            yield str(name) if found is member else f"{name}[{index}]", found
