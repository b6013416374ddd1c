"""What the sequence functions take as a tensor, whose tensors these are, and padding values.

Imports no PyTorch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..tensors.tensor.tensor import Tensor

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence
    from typing_extensions import TypeIs

__all__ = [
    "Array",
    "TensorLike",
    "array_of",
    "arrays_of",
    "has_torch",
    "is_tensor_like",
    "is_torch",
    "is_torch_packed",
    "lengths_of",
    "listed",
    "padding_of",
]

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
        if is_torch(sequences):
            raise _refusal(sequences, what)
        raise not_iterable(f"{what}: expected an iterable of sequences, but got {sequences!r}")
    given: Iterable[Any] = cast(Any, sequences)
    # What an array is called in a message is put together only where one may be raised.
    return [
        sequence
        if type(sequence) is np.ndarray and sequence.dtype.kind in _NUMERIC
        else array_of(sequence, f"{what}: sequence {index}")
        for index, sequence in enumerate(given)
    ]


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


def _refusal(thing: object, what: str) -> TypeError:
    if is_torch(thing):
        return TypeError(
            f"{what} is a torch.Tensor; PyTorch tensors are not understood here: use torch.nn.utils.rnn, "
            "or give its .numpy()"
        )
    return TypeError(f"{what} must be a Tensor or a NumPy array, not a {type(thing).__qualname__}")


def has_torch() -> bool:
    """Whether the program has imported PyTorch, and all of it."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "Tensor") and "torch.nn.utils.rnn" in sys.modules


def is_torch(thing: object) -> TypeIs[torch.Tensor]:
    """Whether an object is a tensor of PyTorch's, disposed or not."""
    # Its class is asked by type(), because a disposed one answers nothing.
    return has_torch() and issubclass(type(thing), sys.modules["torch"].Tensor)


def is_torch_packed(thing: object) -> TypeIs[TorchPackedSequence]:
    """Whether an object is a packed sequence of PyTorch's."""
    return has_torch() and isinstance(thing, sys.modules["torch.nn.utils.rnn"].PackedSequence)


def listed(sequences: Any, what: str) -> tuple[Any, list[Any] | None]:
    """A list of sequences for the functions that take one, and the same where its tensors are PyTorch's.

    Parameters
    ----------
    sequences : object
        What the user gave.
    what : str
        The function, for the message.

    Returns
    -------
    sequences : object
        What was given; an iterator, which can be gone through only once, as a list.
    tensors : list of torch.Tensor or None
        None where there is no tensor of PyTorch's among them. A single tensor gives its rows.

    Raises
    ------
    TypeError
        Only some of them are.
    """
    if not has_torch():
        return sequences, None
    if is_torch(sequences):
        return sequences, list(sequences)
    known = sequences
    if not isinstance(known, Iterable) or isinstance(known, (np.ndarray, Tensor)):
        return sequences, None
    items: Any = sequences
    given: Sequence[Any] = items if isinstance(sequences, (list, tuple)) else list(items)
    theirs = {cls: issubclass(cls, sys.modules["torch"].Tensor) for cls in set(map(type, given))}
    if not any(theirs.values()):
        return given, None
    if not all(theirs.values()):
        own = [theirs[type(sequence)] for sequence in given]
        torch_at, other_at = own.index(True), own.index(False)
        cls = cast("type[object]", type(given[other_at]))
        raise TypeError(
            f"{what}: sequence {torch_at} is a torch.Tensor and sequence {other_at} a "
            f"{cls.__module__}.{cls.__qualname__}; give sequences of one kind: torch.from_numpy(array) makes a tensor "
            "of an array, tensor.numpy() an array of a tensor"
        )
    return given, list(given)


# A padding value as the dtype of the data holds it, and refused where it does not fit.


def padding_of(value: object, dtype: np.dtype[Any], what: str, *, as_float: bool = False) -> np.generic:
    """The padding value as a scalar of a dtype, by PyTorch's rules for a scalar that fills a tensor.

    Parameters
    ----------
    value : object
        A number, or a Tensor or array without dimensions. Fractions are cut off for an integer
        dtype; a negative integer wraps around for an unsigned one; any number but 0 is True for
        bool.
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
