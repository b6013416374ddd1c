"""`Tensor`: an ndarray that a scope can own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._alignment import aligned, served
from ._arguments import PLAIN, bare
from ._handle import array_of, describe, instantiable, wrap
from ._layout import Layout

__all__ = ["Tensor"]

_SINGLE: Final = frozenset({int, slice, type(None), type(...)})
"""Types of keys that hold no Tensor."""


@final
@instantiable
class Tensor(Layout):
    """A thin owned handle around an ndarray: everything that an ndarray can do, and an end that a scope decides.

    Operators, indexing, NumPy's functions and the methods of ndarrays return Tensors, born in the current scope; where
    NumPy returns a scalar, a Tensor of rank 0. Arrays and Python numbers beside a Tensor are promoted as by NumPy.

    A Tensor that has been disposed raises `DisposedError` on every path but ``dispose()``, ``disposed``, ``repr`` and
    ``hash``. Its memory is freed with its last view or exported alias. Tensors are hashed by identity, and compared
    element by element.

    Parameters
    ----------
    data : array_like
        Copied; nested sequences may hold Tensors.
    dtype : dtype_like, optional
        The type of the elements; found from the data where left out.
    name : str, optional
        Shown in messages and reports.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.dispose_scope() as scope:
    ...     t = ds.Tensor([[1.0, 2.0], [3.0, 4.0]])
    ...     means = scope.move_to_outer(t.mean(axis=0))
    >>> means
    Tensor([2., 3.])
    >>> t + 1  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    disposescope.scopes._errors.DisposedError: Tensor shape=(2, 2) dtype=float64 has been disposed ...
    """

    __slots__ = ()

    def __new__(cls, data: ArrayLike | Layout, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        given = bare(data)
        if type(given) not in PLAIN and hasattr(given, "__array__"):
            # Not np.array(): PyTorch's __array__ does not know its argument ``copy``.
            given = np.asarray(given, dtype)
        return wrap(served(np.array, given, dtype), name)

    # ------------------------------------------------------------------ elements

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        """A Tensor: a view for a basic index, a copy for an index that selects one element or is an array.

        Elements of dtype object are returned themselves, and a record is a view, as with ndarrays.
        """
        array = self._array
        if type(key) not in _SINGLE:
            key = bare(key)
        if array.dtype.char in "OV":
            return _element(array, key)
        return wrap(array[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        array = self._array
        if type(key) not in _SINGLE:
            key = bare(key)
        array[key] = value if array.dtype.char == "O" else bare(value)

    def __iter__(self) -> Iterator[Any]:
        if not self._array.ndim:
            raise TypeError("iteration over a tensor of rank 0")
        return self._elements()

    def _elements(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __contains__(self, value: object) -> bool:
        return bool(np.any(self._array == bare(value)))

    # ------------------------------------------------------------------ Python's numbers

    def __bool__(self) -> bool:
        return bool(self._array)

    def __int__(self) -> int:
        return int(self._array)

    def __float__(self) -> float:
        return float(self._array)

    def __complex__(self) -> complex:
        return complex(self._array)

    def __index__(self) -> int:
        return self._array.__index__()

    def __trunc__(self) -> int:
        return int(self._array)

    def __round__(self, ndigits: int | None = None) -> Any:
        array = self._array
        if ndigits is None and not array.ndim:
            return round(array.item())
        return self.round(0 if ndigits is None else ndigits)

    # ------------------------------------------------------------------ text

    def __repr__(self) -> str:
        array = array_of(self)
        if array is None:
            return f"<disposed {describe(self)}>"
        text = np.array_repr(array).removeprefix("array").replace("\n", "\n ")
        return f"Tensor{text}" if self._name is None else f"Tensor{text[:-1]}, name={self._name!r})"

    def __str__(self) -> str:
        return str(self._array)

    def __format__(self, spec: str) -> str:
        array = self._array
        if spec and array.ndim:
            raise TypeError(f"format: {spec!r} formats a number, and this is a Tensor of rank {array.ndim}; index it")
        return format(array.item(), spec) if not array.ndim and array.dtype.char != "V" else str(array)

    # ------------------------------------------------------------------ copies

    def __copy__(self) -> Tensor:
        return wrap(served(self._array.copy, "K"), self._name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return wrap(copy.deepcopy(self._array, memo), self._name)

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        """The value travels; who unpickles it owns what is born there."""
        # From protocol 5 on the elements may leave out of band, as an alias of the memory: an export.
        array = self.numpy() if protocol >= 5 else self._array
        return _rebuilt, (array, self._name)


def _element(array: NDArray[Any], key: Any) -> Any:
    """Index an array of objects or records: an object itself, and a record of rank 0 as a view."""
    keys: tuple[Any, ...] = key if type(key) is tuple else (key,)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if isinstance(key, (str, list)) or any(part is ... for part in keys):
        return wrap(array[key])
    found: Any = array[(*keys, ...)]
    return found.item() if array.dtype.char == "O" and not found.ndim else wrap(found)


def _rebuilt(array: NDArray[Any], name: str | None) -> Tensor:
    return wrap(aligned(array), name)
