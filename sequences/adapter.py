"""What the sequence functions take as a tensor, and whose it is.

Imports no PyTorch: its types are looked up where the program has imported it.
"""

from __future__ import annotations

import sys
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
    "Block",
    "Integers",
    "TensorLike",
    "as_numpy",
    "has_torch",
    "is_tensor_like",
    "is_torch",
    "is_torch_packed",
]

Array: TypeAlias = NDArray[Any]
Integers: TypeAlias = NDArray[np.int64]
TensorLike: TypeAlias = "Tensor | Array"
Block: TypeAlias = Any
"""A NumPy array or a tensor of PyTorch's: both have shape, dtype and itemsize."""


def is_tensor_like(thing: object) -> bool:
    """Return whether an object is a `Tensor`, or an array or a scalar of NumPy's.

    Those are what the sequence functions take for tensors, besides PyTorch's own: see `is_torch`.
    """
    return isinstance(thing, (Tensor, np.ndarray, np.generic))


def as_numpy(thing: object, what: str) -> Array:
    """Return the array behind a Tensor or a plain array, without a copy.

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
    if is_torch(thing):
        raise TypeError(
            f"{what} is a torch.Tensor; PyTorch tensors are not understood here: use torch.nn.utils.rnn, "
            "or give its .numpy()"
        )
    if not isinstance(thing, (np.ndarray, np.generic)):
        raise TypeError(f"{what} must be a Tensor or a NumPy array, not a {type(thing).__qualname__}")
    array: Array = np.asarray(cast(Any, thing))
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{what} has dtype {array.dtype}; sequences are of numbers or bool")
    return array


def has_torch() -> bool:
    """Return whether the program has imported PyTorch, and all of it."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "Tensor") and "torch.nn.utils.rnn" in sys.modules


def is_torch(thing: object) -> TypeIs[torch.Tensor]:
    """Return whether an object is a tensor of PyTorch's, disposed or not."""
    # Its class is asked by type(), because a disposed one answers nothing.
    return has_torch() and issubclass(type(thing), sys.modules["torch"].Tensor)


def is_torch_packed(thing: object) -> TypeIs[TorchPackedSequence]:
    """Return whether an object is a packed sequence of PyTorch's."""
    return has_torch() and isinstance(thing, sys.modules["torch.nn.utils.rnn"].PackedSequence)
