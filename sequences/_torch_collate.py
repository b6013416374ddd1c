"""The batch of a field of PyTorch's tensors: one packed sequence, or one tensor."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ._torch_inputs import check_one_device
from ._torch_pack import pack_sequence

__all__ = ["packed", "stacked", "tensor_of", "trailing_shapes"]


def trailing_shapes(tensors: list[Tensor], names: list[str]) -> list[tuple[int, ...]]:
    """The shapes of a field, which differ in the first axis at most.

    Raises
    ------
    ValueError
        They differ in another one.
    DeviceMismatchError
        The tensors are not on one device.
    """
    check_one_device(zip(names, tensors, strict=True), "pack_collate")
    shapes = [tuple(tensor.shape) for tensor in tensors]
    for name, shape in zip(names, shapes, strict=True):
        if len(shape) != len(shapes[0]) or shape[1:] != shapes[0][1:]:
            raise ValueError(f"{name} has shape {shape}, where sample 0 has {shapes[0]}")
    return shapes


def packed(tensors: list[Tensor], enforce_sorted: bool, what: str) -> PackedSequence:
    """The packed sequence of a field, in a dtype that holds all of its tensors.

    Raises
    ------
    RuntimeError
        They are to be sorted and are not.
    """
    lengths = [tensor.shape[0] for tensor in tensors]
    if enforce_sorted and lengths != sorted(lengths, reverse=True):
        raise RuntimeError(
            f"{what}: the sequences must be sorted by length, longest first, when enforce_sorted is True; "
            "pass enforce_sorted=False to have them sorted"
        )
    return pack_sequence(_of_one_dtype(tensors), enforce_sorted)


def stacked(tensors: list[Tensor]) -> Tensor:
    """The tensors of a field along a new first axis, in a dtype that holds all of them."""
    return torch.stack(_of_one_dtype(tensors))


def tensor_of(numbers: NDArray[Any]) -> Tensor:
    """A field of numbers as a tensor."""
    return torch.tensor(np.asarray(numbers))


def _of_one_dtype(tensors: list[Tensor]) -> list[Tensor]:
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    if len(dtypes) == 1:
        return tensors
    dtype = functools.reduce(torch.promote_types, dtypes)
    return [tensor.to(dtype) for tensor in tensors]
