"""A cache of what is known of types."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Final, Generic, TypeVar, final

__all__ = [
    "TypeCache",
]

T = TypeVar("T")

_DEAD_AT_MOST: Final = 100
"""So many references to types that have gone are kept, besides as many as there are values."""


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
        known = self._types.get(number)
        if known is None or known() is not cls:
            if len(self._types) > _DEAD_AT_MOST + 2 * len(self.known):
                for dead in [each for each, reference in self._types.copy().items() if reference() is None]:
                    self._types.pop(dead, None)
            # No code in Python runs when the type goes: a signal handler could run in its place,
            # and raise. The reference itself is what `pop` returns if there is no value.
            self._types[number] = weakref.ref(cls, partial(self.known.pop, number))
        self.known[number] = value

    def clear(self) -> None:
        """Forget all values."""
        self.known.clear()
