"""The augmented assignments, which compute into the memory that a Tensor has."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ._arguments import PLAIN, overrides
from ._handle import Handle
from ._operators import Operators

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = ["InPlace"]

_python: Final[Any] = operator
_numpy: Final[Any] = np


class InPlace(Operators):
    """``t += x`` and its like: shape and dtype stay, and every view of the memory sees the change, as with ndarrays."""

    __slots__ = ()

    def __iadd__(self, other: Any) -> Tensor:
        return self._in_place(_python.iadd, _numpy.add, other)

    def __isub__(self, other: Any) -> Tensor:
        return self._in_place(_python.isub, _numpy.subtract, other)

    def __imul__(self, other: Any) -> Tensor:
        return self._in_place(_python.imul, _numpy.multiply, other)

    def __itruediv__(self, other: Any) -> Tensor:
        return self._in_place(_python.itruediv, _numpy.true_divide, other)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self._in_place(_python.ifloordiv, _numpy.floor_divide, other)

    def __imod__(self, other: Any) -> Tensor:
        return self._in_place(_python.imod, _numpy.remainder, other)

    def __ipow__(self, other: Any) -> Tensor:
        return self._in_place(_python.ipow, _numpy.power, other)

    def __imatmul__(self, other: Any) -> Tensor:
        return self._in_place(_python.imatmul, _numpy.matmul, other)

    def __ilshift__(self, other: Any) -> Tensor:
        return self._in_place(_python.ilshift, _numpy.left_shift, other)

    def __irshift__(self, other: Any) -> Tensor:
        return self._in_place(_python.irshift, _numpy.right_shift, other)

    def __iand__(self, other: Any) -> Tensor:
        return self._in_place(_python.iand, _numpy.bitwise_and, other)

    def __ixor__(self, other: Any) -> Tensor:
        return self._in_place(_python.ixor, _numpy.bitwise_xor, other)

    def __ior__(self, other: Any) -> Tensor:
        return self._in_place(_python.ior, _numpy.bitwise_or, other)

    def _in_place(self, operate: Callable[[Any, Any], Any], ufunc: Callable[..., Any], other: Any) -> Tensor:
        """Compute into this tensor's memory, as an ndarray does: shape and dtype stay."""
        array = self._array
        if isinstance(other, Handle):
            operate(array, other._array)
        elif type(other) in PLAIN:
            operate(array, other)
        elif overrides(type(other)):  # pyright: ignore[reportUnknownArgumentType] (from Any)
            ufunc(self, other, out=self)
        else:
            ufunc(array, other, out=array)
        return cast("Tensor", self)
