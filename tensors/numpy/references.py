"""What NumPy's arrays hold, for the search of who holds what."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, final

import numpy as np

from ...leaks.holders.references import Memory, Part, add_framework
from .storage import storage_of

__all__ = [
    "show_edges",
]

_namespace: Final[Any] = vars(np.ndarray)
# Past the attributes of subclasses.
_base: Final[Any] = _namespace["base"].__get__
_nbytes: Final[Any] = _namespace["nbytes"].__get__
_ARRAY: Final = np.ndarray


@final
class ArrayEdges:
    """The one instance is among the frameworks."""

    __slots__ = ()

    def quiet(self) -> AbstractContextManager[object]:
        """See `Framework.quiet`."""
        return nullcontext()

    def part(self, cls: type) -> Part | None:
        """See `Framework.part`."""
        return "tensor" if issubclass(cls, np.ndarray) else None

    def edges(self, thing: Any) -> list[tuple[str, object]]:
        """See `Framework.edges`."""
        base = _base(thing)
        return [] if base is None else [(".base", base)]

    def memory(self, thing: Any) -> list[Memory]:
        """See `Framework.memory`."""
        identity, _ = storage_of(thing)
        return [Memory("", identity, _nbytes(thing))]

    def alone(self, tensor: Any) -> Hashable | None:
        """See `Framework.alone`."""
        if type(tensor) is not _ARRAY or tensor.base is not None or tensor.dtype.hasobject:
            return None
        return storage_of(tensor)[0]

    def passes(self, tensor: Any) -> int:
        """See `Framework.passes`: arrays have no graphs."""
        return 0

    def walked(self, nodes: dict[int, Any], edges: dict[int, list[int]]) -> None:
        """See `Framework.walked`."""


def show_edges() -> None:
    """Let searches for holders see what arrays hold."""
    add_framework(ArrayEdges())
