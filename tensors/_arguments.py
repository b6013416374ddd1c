"""Tensors as arguments of NumPy's functions: their arrays on the way in, Tensors on the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ._handle import Handle, wrap

__all__ = ["PLAIN", "bare", "defers", "dressed", "overrides"]

PLAIN: Final[frozenset[type]] = frozenset(
    {np.ndarray, int, float, bool, complex, str, bytes, list, tuple, type(None), *np.sctypeDict.values()}
)
"""Types of operands that NumPy computes with itself."""

PRIORITY: Final = 1.0
"""Above plain arrays, and below whoever asks for the last word."""

_ATOMS: Final = PLAIN - {list, tuple}
_LEAVES: Final[tuple[Any, ...]] = (np.ndarray, np.generic, str, bytes, bytearray, memoryview, range)
_ARRAY: Final[Any] = np.ndarray
_SCALAR: Final[Any] = np.generic
_TUPLE: Final[Any] = tuple
_ABSENT: Final = object()


def bare(value: Any, given: dict[int, Any] | None = None) -> Any:
    """A value with the array in the place of each Tensor, in sequences and dicts too.

    Parameters
    ----------
    value : object
        A Tensor, or a container, or anything else, which is returned as it is.
    given : dict, optional
        Gets each Tensor that was met, by the ``id`` of its array.
    """
    if isinstance(value, Handle):
        array = value._array
        if given is not None:
            given[id(array)] = value
        return array
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls in _ATOMS or isinstance(value, _LEAVES):
        return value
    if cls is list:
        return [item if type(item) in _ATOMS else bare(item, given) for item in value]
    if cls is tuple:
        return tuple([item if type(item) in _ATOMS else bare(item, given) for item in value])
    if cls is dict:
        return {key: bare(item, given) for key, item in value.items()}
    if issubclass(cls, Sequence):
        # A namedtuple or a deque: copied only where it holds a Tensor.
        before: list[Any] = list(value)
        after = [bare(item, given) for item in before]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            return tuple(after) if issubclass(cls, tuple) else after
    return value


def overrides(cls: type) -> bool:
    """Whether a type has its own say in ufuncs, unlike arrays, Tensors, and what NumPy makes an array of."""
    method = getattr(cls, "__array_ufunc__", _ABSENT)
    return method is not _ABSENT and method is not np.ndarray.__array_ufunc__ and not issubclass(cls, Handle)


def defers(other: object) -> bool:
    """Whether an operator leaves the result to the other operand, by the rules of NEP 13 and of ``__array_priority__``.

    A subclass of ndarray has the first word, as Python gives it beside an ndarray.
    """
    cls = type(other)
    if issubclass(cls, _ARRAY):
        return True
    if hasattr(cls, "__array_ufunc__"):
        return overrides(cls)
    priority = getattr(cls, "__array_priority__", 0.0)
    return isinstance(priority, (int, float)) and priority > PRIORITY


def dressed(result: Any, given: dict[int, Any]) -> Any:
    """A result of NumPy with its arrays and scalars made Tensors, in tuples, lists and dicts too.

    Parameters
    ----------
    result : object
        What NumPy returned. Python's own numbers and strings, and instances of subclasses of ndarray, stay as they are.
    given : dict
        By the ``id`` of its array, what the caller gave: it is returned itself where NumPy returned that array.
    """
    cls: Any = type(result)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is _ARRAY:
        known = given.get(id(result))
        return wrap(result) if known is None else known
    if cls is tuple:
        return tuple([dressed(item, given) for item in result])
    if cls is list:
        return [dressed(item, given) for item in result]
    if cls is dict:
        return {key: dressed(item, given) for key, item in result.items()}
    if isinstance(result, _SCALAR):
        return wrap(result)
    if isinstance(result, _TUPLE) and hasattr(cls, "_fields"):
        return cls(*[dressed(item, given) for item in result])
    return given.get(id(result), result) if issubclass(cls, _ARRAY) else result
