"""The operators: Python's on the arrays themselves, which is shorter than the way through the ufunc protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._arguments import PLAIN, PRIORITY, defers
from ._handle import Handle, wrap

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = ["Operators"]


class Operators(Handle):
    """Arithmetic, comparison and bitwise operators, with NumPy's promotion for what stands beside a Tensor.

    Every body reads ``self._array`` first, so that a disposed operand raises whatever the other one is. The repetition
    is for speed: a shared function would cost a call for each operation.
    """

    __slots__ = ()

    __array_priority__ = PRIORITY

    # Tensors are keys and members by identity, and compare element by element.
    __hash__ = Handle.__hash__

    def __add__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array + other)

    def __sub__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array - other)

    def __mul__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array * other)

    def __truediv__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array / other)

    def __floordiv__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array // other)

    def __mod__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array % other)

    def __pow__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array**other)

    def __matmul__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array @ other)

    def __lshift__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array << other)

    def __rshift__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array >> other)

    def __and__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array & other)

    def __xor__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array ^ other)

    def __or__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array | other)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        quotient, remainder = divmod(array, other)
        return wrap(quotient), wrap(remainder)

    def __radd__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other + array)

    def __rsub__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other - array)

    def __rmul__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other * array)

    def __rtruediv__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other / array)

    def __rfloordiv__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other // array)

    def __rmod__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other % array)

    def __rpow__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other**array)

    def __rmatmul__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other @ array)

    def __rlshift__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other << array)

    def __rrshift__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other >> array)

    def __rand__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other & array)

    def __rxor__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other ^ array)

    def __ror__(self, other: Any) -> Tensor:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(other | array)

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented  # type: ignore[no-any-return]  # mypy knows it of other operators
        pair: Any = divmod(other, array)
        return wrap(pair[0]), wrap(pair[1])

    def __lt__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array < other)

    def __le__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array <= other)

    def __gt__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array > other)

    def __ge__(self, other: Any) -> Tensor:
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array >= other)

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]  # by element, as arrays do
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array == other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]  # by element, as arrays do
        array = self._array
        if isinstance(other, Handle):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        return wrap(array != other)

    def __neg__(self) -> Tensor:
        return wrap(-self._array)

    def __pos__(self) -> Tensor:
        return wrap(+self._array)

    def __invert__(self) -> Tensor:
        return wrap(~self._array)

    def __abs__(self) -> Tensor:
        return wrap(abs(self._array))
