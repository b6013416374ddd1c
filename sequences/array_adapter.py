"""What the sequence functions ask of NumPy's arrays and `Tensor`s.

Tells what is wrong with what it is given in messages of its own, and raises what PyTorch raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import numpy as np

from ..tensors.numpy.alignment import served
from ..tensors.tensor.tensor import wrap
from .adapter import Array, Block, Integers, as_numpy, is_tensor_like
from .packed import PackedSequence, arrays_in

__all__ = [
    "ARRAYS",
    "ArrayAdapter",
]


class ArrayAdapter:
    """What the sequence functions ask of a framework: this one of NumPy, a subclass of PyTorch.

    `what` is the name of the function, for messages.
    """

    __slots__ = ()

    def call(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function with the adapter, a name and what the user gave.

        No resources are born but its results. The name is that of PyTorch's function, which may be
        called instead.
        """
        return served(function, self, name, *given)

    def block(self, given: Any, what: str) -> Block:
        """Return the block behind what a user gave; `what` is its name."""
        return as_numpy(given, what)

    def blocks(self, sequences: Any, what: str, not_iterable: type[Exception]) -> list[Block]:
        """Return the blocks of a list of sequences, or of the rows of a single one.

        Raises
        ------
        not_iterable
            It is neither.
        """
        if is_tensor_like(sequences):
            return [np.asarray(row) for row in as_numpy(sequences, what)]
        if not isinstance(sequences, Iterable):
            raise not_iterable(f"{what}: expected an iterable of sequences, but got {sequences!r}")
        given = cast("Iterable[Any]", cast(object, sequences))
        return [as_numpy(sequence, f"{what}: sequence {index}") for index, sequence in enumerate(given)]

    def fields(self, packed: Any, what: str) -> tuple[Block, Array, Array | None]:
        """Return data, batch sizes and unsorted indices of a packed sequence."""
        if not isinstance(packed, PackedSequence):
            raise TypeError(
                f"{what}: expected a PackedSequence, not a {type(packed).__module__}.{type(packed).__qualname__}"
            )
        data, batch_sizes, _, places = arrays_in(packed)
        return data, batch_sizes, places

    def lengths(self, given: Any, what: str) -> Array:
        """Return lengths, of any shape and number type, or raise as ``torch.as_tensor(given)``."""
        if isinstance(given, (list, tuple, range)):
            return _array_of_numbers(list(cast("Sequence[Any]", given)), what)
        if isinstance(given, (int, float)):
            return np.asarray(given)
        array = as_numpy(given, f"{what}: lengths")
        if array.dtype.kind == "c":
            raise TypeError(f"{what}: lengths must be real numbers, not {array.dtype}")
        return array

    def descending(self, lengths: Integers) -> Integers:
        """Return the indices that sort lengths, longest first; equal lengths keep their order."""
        # The complement reverses the order of all int64, where a minus would overflow at the
        # smallest.
        return np.argsort(~lengths, kind="stable")

    def alike(self, blocks: list[Block], what: str) -> list[Block]:
        """Return contiguous blocks with dtype and trailing shape of the first.

        Others are broadcast to that shape.

        Raises
        ------
        RuntimeError
            One cannot be broadcast to that shape.
        """
        first = blocks[0]
        row = first.shape[1:]
        parts: list[Array] = []
        for index, block in enumerate(blocks):
            part = block
            if block.shape[1:] != row:
                try:
                    part = np.broadcast_to(block, (block.shape[0], *row))
                except ValueError:
                    raise RuntimeError(
                        f"{what}: sequence {index} has shape {block.shape}, "
                        f"which does not fit the trailing shape {row} of sequence 0"
                    ) from None
            parts.append(np.ascontiguousarray(part, first.dtype))
        return parts

    def empty(self, shape: tuple[int, ...], like: Block) -> Block:
        """Return a new block with the dtype of another, whose values are undefined."""
        return np.empty(shape, like.dtype)

    def full(self, shape: tuple[int, ...], like: Block, value: Any, what: str, as_float: bool) -> Block:
        """Return a new block of a padding value, by PyTorch's rules for a scalar.

        `as_float` says whether the value is taken for a float first, as ``pad_sequence`` does.
        """
        if is_tensor_like(value):
            array = as_numpy(value, f"{what}: padding_value")
            if array.ndim:
                raise TypeError(f"{what}: padding_value must be a number, not an array of shape {array.shape}")
            value = array.item()
        if not isinstance(value, (int, float, complex)):
            raise TypeError(f"{what}: padding_value must be a number, not a {type(value).__qualname__}")
        if as_float:
            if isinstance(value, complex):
                raise TypeError(f"{what}: padding_value must be a float, not complex")
            value = float(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise OverflowError(f"{what}: padding_value {value} is too large")
        fitted = _fit(value, like.dtype)
        if fitted is None:
            raise RuntimeError(f"{what}: padding_value {value!r} does not fit into {like.dtype}")
        return np.full(shape, fitted, like.dtype)

    def tensor(self, block: Block) -> Any:
        """Return the result of a block or an array that nobody else refers to."""
        return wrap(block)

    def packed(self, data: Block, *indices: Integers | None) -> Any:
        """Return the packed sequence with some data, batch sizes, sorted and unsorted indices."""
        return PackedSequence._of((data, *indices))

    def of_one_dtype(self, blocks: list[Block], names: list[str]) -> list[Block]:
        """Return the blocks of some names in a dtype that holds all; they must be on one device."""
        dtype = np.result_type(*{block.dtype for block in blocks})
        return [block.astype(dtype, copy=False) for block in blocks]

    def stacked(self, blocks: list[Block]) -> Any:
        """Return the result of blocks along a new first axis."""
        return wrap(served(np.stack, blocks))


def _array_of_numbers(lengths: list[Any], what: str) -> Array:
    for at, length in enumerate(lengths):
        if is_tensor_like(length):
            lengths[at] = as_numpy(length, f"{what}: lengths")
        elif isinstance(length, str):
            raise ValueError(f"{what}: lengths must be numbers, but one of them is {length!r}")
        elif not isinstance(length, (int, float, list, tuple)):
            raise TypeError(f"{what}: lengths must be real numbers, but one of them is a {type(length).__qualname__}")
    try:
        array: Array = np.asarray(lengths)
    except ValueError as error:
        raise ValueError(f"{what}: lengths must be one number for each sequence, but got {lengths!r}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: lengths must be integers that fit into int64, but got {lengths!r}")
    return array


def _fit(number: complex, dtype: np.dtype[Any]) -> complex | None:
    """Return the number as it goes into the dtype, None where it does not.

    Fractions are cut off for an integer dtype, and a negative integer wraps around for an unsigned
    one. Any number but 0 is True for bool.
    """
    if dtype.kind == "b":
        return number != 0
    if dtype.kind in "fc":
        largest = float(np.finfo(dtype).max)
        parts = complex(number)
        if any(math.isfinite(part) and abs(part) > largest for part in (parts.real, parts.imag)):
            return None
        return parts if dtype.kind == "c" else (parts.real if parts.imag == 0 else None)
    if isinstance(number, complex):
        if number.imag != 0:
            return None
        number = number.real
    limits = np.iinfo(dtype)
    if isinstance(number, int) and dtype.kind == "u" and -limits.max <= number < 0:
        return number + int(limits.max) + 1
    # NaN is within no limits.
    return int(number) if limits.min <= number <= limits.max else None


ARRAYS: Final = ArrayAdapter()
