"""The adapter of NumPy arrays and `Tensor`s for the sequence functions.

For bad arguments it raises the exceptions that PyTorch raises, with messages of its own.
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
    """The operations on tensors that the sequence functions need, for NumPy.

    `TorchAdapter` overrides them for PyTorch. The parameter `what` of the methods is the name of
    the function, and perhaps of the argument, for messages.
    """

    __slots__ = ()

    def call(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function with the adapter, its name and the user's arguments.

        Nothing but the results is born in the current scope. `TorchAdapter` may call PyTorch's
        function of the same name instead.
        """
        return served(function, self, name, *given)

    def block(self, given: Any, what: str) -> Block:
        """Return the block of a tensor that the user gave."""
        return as_numpy(given, what)

    def blocks(self, sequences: Any, what: str, not_iterable: type[Exception]) -> list[Block]:
        """Return the blocks of an iterable of sequences, or of the rows of one tensor.

        Raises
        ------
        not_iterable
            The argument is neither.
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
        """Return lengths as an array, of any shape and number type.

        Raises what ``torch.as_tensor(given)`` raises.
        """
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
        # The complement reverses the order of all int64; negation would overflow for the smallest.
        return np.argsort(~lengths, kind="stable")

    def alike(self, blocks: list[Block], what: str) -> list[Block]:
        """Return contiguous blocks with the dtype and the trailing shape of the first block.

        Raises
        ------
        RuntimeError
            A block cannot be broadcast to the trailing shape.
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
        """Return a new block of undefined values, with the dtype of another block."""
        return np.empty(shape, like.dtype)

    def full(self, shape: tuple[int, ...], like: Block, value: Any, what: str, as_float: bool) -> Block:
        """Return a new block filled with a padding value, with the dtype of another block.

        The value is converted by PyTorch's rules for a scalar; with `as_float`, to float first, as
        ``pad_sequence`` does.
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
        """Return a new tensor, for the user, that takes over a block or an array of indices."""
        return wrap(block)

    def packed(self, data: Block, *indices: Integers | None) -> Any:
        """Return a packed sequence of data, batch sizes, sorted and unsorted indices."""
        return PackedSequence._of((data, *indices))

    def of_one_dtype(self, blocks: list[Block], names: list[str]) -> list[Block]:
        """Return blocks converted to a dtype that can hold the values of all.

        They must be on one device; `names` are the names of the blocks for messages.
        """
        dtype = np.result_type(*{block.dtype for block in blocks})
        return [block.astype(dtype, copy=False) for block in blocks]

    def stacked(self, blocks: list[Block]) -> Any:
        """Return a tensor of blocks that are stacked along a new first axis."""
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
    """Return a number converted to a dtype; None if it does not fit.

    For integer dtypes fractions are cut off; for unsigned ones negative integers wrap around. For
    bool, any number but 0 is True.
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
    # This comparison is false for NaN.
    return int(number) if limits.min <= number <= limits.max else None


ARRAYS: Final = ArrayAdapter()
