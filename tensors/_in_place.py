"""The augmented assignments, which compute into the memory that a Tensor has."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ._arguments import PLAIN, overrides
from ._handle import Handle
from ._operators import Operators

__all__ = ["InPlace"]


class InPlace(Operators):
    """``t += x`` and its like: shape and dtype stay, and every view of the memory sees the change, as with ndarrays."""

    __slots__ = ()

    def __iadd__(self, other: Any) -> Self:
        return self._in_place(operator.iadd, np.add, other)

    def __isub__(self, other: Any) -> Self:
        return self._in_place(operator.isub, np.subtract, other)

    def __imul__(self, other: Any) -> Self:
        return self._in_place(operator.imul, np.multiply, other)

    def __itruediv__(self, other: Any) -> Self:
        return self._in_place(operator.itruediv, np.true_divide, other)

    def __ifloordiv__(self, other: Any) -> Self:
        return self._in_place(operator.ifloordiv, np.floor_divide, other)

    def __imod__(self, other: Any) -> Self:
        return self._in_place(operator.imod, np.remainder, other)

    def __ipow__(self, other: Any) -> Self:
        return self._in_place(operator.ipow, np.power, other)

    def __imatmul__(self, other: Any) -> Self:
        return self._in_place(operator.imatmul, np.matmul, other)

    def __ilshift__(self, other: Any) -> Self:
        return self._in_place(operator.ilshift, np.left_shift, other)

    def __irshift__(self, other: Any) -> Self:
        return self._in_place(operator.irshift, np.right_shift, other)

    def __iand__(self, other: Any) -> Self:
        return self._in_place(operator.iand, np.bitwise_and, other)

    def __ixor__(self, other: Any) -> Self:
        return self._in_place(operator.ixor, np.bitwise_xor, other)

    def __ior__(self, other: Any) -> Self:
        return self._in_place(operator.ior, np.bitwise_or, other)

    def _in_place(self, operate: Callable[[Any, Any], Any], ufunc: np.ufunc, other: Any) -> Self:
        """Compute into this tensor's memory, as an ndarray does: shape and dtype stay."""
        array = self._array
        if isinstance(other, Handle):
            operate(array, other._array)
        elif type(other) in PLAIN:
            operate(array, other)
        elif overrides(type(other)):
            ufunc(self, other, out=self)
        else:
            ufunc(array, other, out=array)
        return self
