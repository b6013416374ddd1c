"""A padding value as the dtype of the data holds it, and refused where it does not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._inputs import array_of, is_tensor_like

__all__ = ["padding_of"]


def padding_of(value: object, dtype: np.dtype[Any], what: str, *, as_float: bool = False) -> np.generic:
    """The padding value as a scalar of a dtype, by PyTorch's rules for a scalar that fills a tensor.

    Parameters
    ----------
    value : object
        A number, or a Tensor or array without dimensions. Fractions are cut off for an integer dtype; a negative
        integer wraps around for an unsigned one; any number but 0 is True for bool.
    dtype : dtype
        The dtype to fill.
    what : str
        The function, for the message.
    as_float : bool
        Take the value for a float first, as ``pad_sequence`` does.

    Raises
    ------
    TypeError
        It is not a number.
    OverflowError
        It is an integer that no integer dtype holds.
    RuntimeError
        It does not fit into the dtype.
    """
    number = _number(value, what)
    if as_float:
        if isinstance(number, complex):
            raise TypeError(f"{what}: padding_value must be a float, not complex")
        number = float(number)
    elif isinstance(number, int) and not -(2**63) <= number < 2**64:
        raise OverflowError(f"{what}: padding_value {number} is too large")
    fitted = _fit(number, dtype)
    if fitted is None:
        raise RuntimeError(f"{what}: padding_value {number!r} does not fit into {dtype}")
    scalar: np.generic = dtype.type(fitted)
    return scalar


def _number(value: object, what: str) -> int | float | complex:
    if is_tensor_like(value):
        array = array_of(value, f"{what}: padding_value")
        if array.ndim:
            raise TypeError(f"{what}: padding_value must be a number, not an array of shape {array.shape}")
        value = array.item()
    if not isinstance(value, (int, float, complex)):
        raise TypeError(f"{what}: padding_value must be a number, not a {type(value).__qualname__}")
    return value


def _fit(number: int | float | complex, dtype: np.dtype[Any]) -> int | float | complex | None:
    """The number as it goes into the dtype, None where it does not."""
    kind = dtype.kind
    if kind == "b":
        return number != 0
    if kind == "c":
        largest = float(np.finfo(dtype).max)
        parts = complex(number)
        return parts if _reaches(parts.real, largest) and _reaches(parts.imag, largest) else None
    if isinstance(number, complex):
        if number.imag != 0:
            return None
        number = number.real
    if kind == "f":
        number = float(number)
        return number if _reaches(number, float(np.finfo(dtype).max)) else None
    limits = np.iinfo(dtype)
    if isinstance(number, float):
        if math.isnan(number) or math.isinf(number) or not limits.min <= number <= limits.max:
            return None
        return int(number)
    if kind == "u" and number < 0:
        return int(limits.max) + 1 + number if -number <= limits.max else None
    return number if limits.min <= number <= limits.max else None


def _reaches(part: float, largest: float) -> bool:
    return math.isnan(part) or math.isinf(part) or -largest <= part <= largest
