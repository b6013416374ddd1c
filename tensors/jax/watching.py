"""Watching JAX's arrays for a leak detector: outside of scopes too, owned by nobody.

They are seen where scopes are told of births: by JAX's hook, at first calls and at ``device_put``.
What comes into being by other ways still (the copy of an array to another device) is told where it
is a scope's only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final
from weakref import ref

from ...leaks.births.log import LOG, Row, Seen, Told, see
from ...leaks.detector.watching import add_watcher
from ...leaks.holders.references import Memory, Part, add_framework
from .births import ARRAY, SIGHTINGS, uncover

if TYPE_CHECKING:
    from ...leaks.births.log import Rows
    from ...scopes.identity import Entry
    from ...scopes.kinds import Kind

__all__ = [
    "watch_arrays",
]

_NAME: Final = "jax.Array"


@final
class _Anchor:
    """Stands in the log for an array, and goes when that goes."""

    __slots__ = ("__weakref__", "array")

    array: ref[Any]


_ANCHORS: Final[dict[int, _Anchor]] = {}
"""By ``id`` of an array that is there."""


def _forget(key: int, reference: ref[Any], anchors: dict[int, _Anchor] = _ANCHORS) -> None:
    anchor = anchors.get(key)
    if anchor is not None and anchor.array is reference:
        del anchors[key]


def _see(array: Any) -> None:
    """Put an array down that no scope has."""
    nbytes: int = array.nbytes
    if nbytes:
        platform = array.device if len(array.devices()) == 1 else min(array.devices(), key=lambda one: one.id)
        key = id(array)
        _ANCHORS[key] = anchor = _Anchor()
        anchor.array = ref(array, partial(_forget, key))
        LOG.sight(anchor, None, nbytes, _NAME, f"{platform.platform}:{platform.id}")


@final
class JaxWatcher:
    """The one instance is among the watchers: see `Watcher`."""

    __slots__ = ()

    kind: Kind | None = None

    def begin(self) -> None:
        """See births on this thread from now on."""
        uncover()
        if _see not in SIGHTINGS:
            SIGHTINGS.append(_see)

    def end(self) -> None:
        """See none any more."""
        SIGHTINGS.clear()

    def look(self) -> None:
        """Nothing: births are recorded when they happen."""

    def recall(self, entry: Entry) -> Row | None:
        """What is known of an array that was nobody's when it was born."""
        anchor = _ANCHORS.get(id(entry()))
        row: Row | None = None if anchor is None else LOG.recall_memory(anchor)
        return row

    def seen(self, after: int, until: int, but: Container[Hashable]) -> tuple[list[Seen], Rows]:
        """The arrays of a window that are there now."""
        return see(_NAME, but, _identify, _is_there, *LOG.sightings(after, until))


def _identify(anchor: Any) -> Told | None:
    array: Any = anchor.array() if type(anchor) is _Anchor else None
    # Gone, or memory of another framework.
    return None if type(array) is not ARRAY or array.is_deleted() else (("jax", id(array)), array.nbytes)


def _is_there(reference: Callable[[], Any], _number: int) -> bool:
    anchor = reference()
    return anchor is not None and anchor.array() is not None


@final
class JaxEdges:
    """What JAX's arrays hold, for the search of who holds what: their memory."""

    __slots__ = ()

    def quiet(self) -> AbstractContextManager[object]:
        """See `Framework.quiet`."""
        return nullcontext()

    def part(self, cls: type) -> Part | None:
        """See `Framework.part`."""
        return "tensor" if cls is ARRAY else None

    def edges(self, thing: Any) -> list[tuple[str, object]]:
        """See `Framework.edges`."""
        return []

    def memory(self, thing: Any) -> list[Memory]:
        """See `Framework.memory`."""
        return [] if thing.is_deleted() else [Memory("", ("jax", id(thing)), thing.nbytes)]

    def alone(self, tensor: Any) -> Hashable | None:
        """See `Framework.alone`: it refers to much."""
        return None

    def passes(self, tensor: Any) -> int:
        """See `Framework.passes`: arrays have no graphs."""
        return 0

    def walked(self, nodes: dict[int, Any], edges: dict[int, list[int]]) -> None:
        """See `Framework.walked`."""


def watch_arrays() -> None:
    """Watch JAX's arrays whenever a detector is open, from now on."""
    add_framework(JaxEdges())
    add_watcher(JaxWatcher())
