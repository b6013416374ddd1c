"""A cache of what is known of types."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Final, Generic, TypeVar, final

__all__ = [
    "TypeCache",
]

T = TypeVar("T")


@final
class TypeCache(Generic[T]):
    """Values by type. It refers to the types weakly.

    The types are the program's. A class that lives on keeps the variables of its module, which are
    then not released when the program ends. A type to which its value refers lives on nevertheless.

    Attributes
    ----------
    known : dict
        The values, by the ``id`` of a type. So no metaclass is asked for a hash. An entry goes with
        its type, so that no other type is taken for it.
    """

    __slots__ = ("_types", "known")

    def __init__(self) -> None:
        self.known: Final[dict[int, T]] = {}
        self._types: Final[dict[int, weakref.ref[type]]] = {}

    def remember(self, cls: type, value: T) -> None:
        """Set the value of a type."""
        number = id(cls)
        if number not in self._types:
            self._types[number] = weakref.ref(cls, partial(_forget, number, self.known, self._types))
        self.known[number] = value

    def clear(self) -> None:
        """Forget all values."""
        self.known.clear()


def _forget(number: int, known: dict[int, Any], types: dict[int, Any], _: object) -> None:
    # Not a method: a cache that has gone need not be told.
    known.pop(number, None)
    types.pop(number, None)
