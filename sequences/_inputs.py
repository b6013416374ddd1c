"""What the sequence functions understand as a tensor, and how they see the array in it.

The one place that judges inputs: each public function asks here first, so that another framework's tensors can be
sent to that framework's own functions from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..tensors._tensor import Tensor

__all__ = ["Array", "TensorLike", "array_of", "arrays_of", "is_tensor_like", "lengths_of"]

Array: TypeAlias = NDArray[Any]
TensorLike: TypeAlias = "Tensor | Array"

_NUMERIC = "biufc"


def is_tensor_like(thing: object) -> bool:
    """Whether an object is a tensor to the sequence functions: a Tensor, or a plain array or scalar of NumPy's."""
    return isinstance(thing, (Tensor, np.ndarray, np.generic))


def array_of(thing: object, what: str) -> Array:
    """The array behind a Tensor or a plain array, without a copy.

    Parameters
    ----------
    thing : object
        What the user gave.
    what : str
        What the message calls it (``"pad_sequence: sequence 3"``).

    Raises
    ------
    TypeError
        It is neither, or of a dtype that holds no numbers.
    DisposedError
        The Tensor has been disposed.
    """
    if isinstance(thing, Tensor):
        return thing._array
    if not isinstance(thing, (np.ndarray, np.generic)):
        raise _refusal(thing, what)
    array: Array = np.asarray(cast(Any, thing))
    if array.dtype.kind not in _NUMERIC:
        raise TypeError(f"{what} has dtype {array.dtype}; sequences are of numbers or bool")
    return array


def arrays_of(sequences: object, what: str, not_iterable: type[Exception]) -> list[Array]:
    """The arrays of a list of sequences; of a single array, its rows.

    Raises
    ------
    TypeError
        An element is neither a Tensor nor an array, or a 0-d array was given.
    """
    if is_tensor_like(sequences):
        return [np.asarray(row) for row in array_of(sequences, what)]
    if not isinstance(sequences, Iterable):
        if _is_torch(sequences):
            raise _refusal(sequences, what)
        raise not_iterable(f"{what}: expected an iterable of sequences, but got {sequences!r}")
    given = cast("Iterable[object]", sequences)
    return [array_of(sequence, f"{what}: sequence {index}") for index, sequence in enumerate(given)]


def lengths_of(lengths: object, what: str) -> Array:
    """Lengths as an int64 array, from a list, a tuple, an array or a Tensor.

    As ``torch.as_tensor(lengths, dtype=torch.int64)`` does it: fractions are cut off.

    Raises
    ------
    TypeError
        They are not numbers.
    ValueError
        The list is ragged.
    RuntimeError
        A number is not finite, or too large for int64.
    """
    if isinstance(lengths, (list, tuple, range)):
        array = _numbers(list(cast("Iterable[Any]", lengths)), what)
    elif isinstance(lengths, (int, float)):
        array = np.asarray(lengths)
    else:
        array = array_of(lengths, f"{what}: lengths")
    if array.dtype == np.int64:
        return array
    if array.dtype.kind == "f" and not (np.abs(array) < 2.0**63).all():
        raise RuntimeError(f"{what}: lengths must be finite and fit into int64, but got {array.tolist()}")
    return array.astype(np.int64)


def _numbers(lengths: list[Any], what: str) -> Array:
    plain: list[Any] = []
    for length in lengths:
        if isinstance(length, (list, tuple)):
            plain.append(length)
        elif is_tensor_like(length):
            plain.append(array_of(length, f"{what}: lengths"))
        elif isinstance(length, (int, float)):
            plain.append(length)
        elif isinstance(length, str):
            raise ValueError(f"{what}: lengths must be numbers, but one of them is {length!r}")
        else:
            raise TypeError(f"{what}: lengths must be numbers, but one of them is a {type(length).__qualname__}")
    try:
        array: Array = np.asarray(plain)
    except ValueError as error:
        raise ValueError(f"{what}: lengths must be one number for each sequence, but got {lengths!r}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: lengths must be integers that fit into int64, but got {lengths!r}")
    return array


def _is_torch(thing: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, getattr(torch, "Tensor", ()))


def _refusal(thing: object, what: str) -> TypeError:
    if _is_torch(thing):
        return TypeError(
            f"{what} is a torch.Tensor; PyTorch tensors are not understood here: use torch.nn.utils.rnn, "
            "or give its .numpy()"
        )
    return TypeError(f"{what} must be a Tensor or a NumPy array, not a {type(thing).__qualname__}")
