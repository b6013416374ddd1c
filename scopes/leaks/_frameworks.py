"""The seam to frameworks whose objects hold more than the garbage collector sees: tensors, and nodes of graphs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol

__all__ = ["ACTIONS", "FRAMEWORKS", "Framework", "Memory", "Part", "add_framework", "framework_of"]

Part = Literal["tensor", "node"]
"""A tensor, or a node of an autograd graph."""


class Memory(NamedTuple):
    """A storage that an object keeps.

    Attributes
    ----------
    step : str
        How code reaches it from the object; empty for a tensor's own.
    identity : hashable
        Its identity, as `Kind.storages` tells it.
    used_nbytes : int
        The bytes of it that the object uses.
    """

    step: str
    identity: Hashable
    used_nbytes: int


class Framework(Protocol):
    """What the floor above implements. No code of the program may be run, and nothing is changed."""

    def part(self, cls: type, /) -> Part | None:
        """What the instances of a type are; None where the framework has nothing to tell of them."""
        ...

    def quiet(self) -> AbstractContextManager[object]:
        """What the calls below are made inside of: keeps the framework from telling others of them."""
        ...

    def edges(self, thing: Any, /) -> Sequence[tuple[str, object]]:
        """What an object holds, each with how code reaches it, as far as the garbage collector does not see it."""
        ...

    def memory(self, thing: Any, /) -> Sequence[Memory]:
        """The storages that an object keeps."""
        ...

    def alone(self, tensor: Any, /) -> Hashable | None:
        """The identity of the one storage of a tensor that refers to nothing else; None for others, and in doubt."""
        ...

    def passes(self, tensor: Any, /) -> int:
        """In how many passes of a loop the nodes of a tensor's graph were made, where that is known; else 0."""
        ...

    def walked(self, nodes: dict[int, Any], edges: dict[int, list[int]], /) -> None:
        """Nodes of graphs were walked: all of them by ``id``, and for each the ``id`` of those that it refers to."""


FRAMEWORKS: Final[list[Framework]] = []
"""Those that were taught."""

ACTIONS: Final[dict[type, int]] = {}
"""What a search does with the instances of each type, as far as it was asked: see `_edges.action_of`."""

_OF_TYPE: Final[dict[type, tuple[Framework, Part] | None]] = {}
_REMEMBERED: Final = 4096


def framework_of(cls: Any) -> tuple[Framework, Part] | None:
    """The framework that knows a type, and what its instances are."""
    try:
        return _OF_TYPE[cls]
    except KeyError:
        found: tuple[Framework, Part] | None = None
        for framework in FRAMEWORKS:
            part = framework.part(cls)
            if part is not None:
                found = framework, part
                break
        if len(_OF_TYPE) >= _REMEMBERED:
            _OF_TYPE.clear()
        _OF_TYPE[cls] = found
        return found


def add_framework(framework: Framework) -> None:
    """Learn a framework."""
    FRAMEWORKS.append(framework)
    _OF_TYPE.clear()
    ACTIONS.clear()
