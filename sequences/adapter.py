"""Which objects are tensors for the sequence functions, and of which library.

PyTorch is not imported: its types are looked up in ``sys.modules``.
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
"""A NumPy array or a tensor of PyTorch, which both have shape, dtype and itemsize."""


def is_tensor_like(thing: object) -> bool:
    """Return whether an object is a `Tensor`, or a NumPy array or scalar.

    The sequence functions take these as tensors, and tensors of PyTorch: see `is_torch`.
    """
    return isinstance(thing, (Tensor, np.ndarray, np.generic))


def as_numpy(thing: object, what: str) -> Array:
    """Return the array behind a Tensor or a plain array, without a copy.

    Parameters
    ----------
    thing : object
        The user's argument.
    what : str
        The name of the argument for messages (``"pad_sequence: sequence 3"``).

    Raises
    ------
    TypeError
        It is neither, or its dtype holds no numbers.
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
    """Return whether the program has imported PyTorch completely."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "Tensor") and "torch.nn.utils.rnn" in sys.modules


def is_torch(thing: object) -> TypeIs[torch.Tensor]:
    """Return whether an object is a tensor of PyTorch, disposed or not."""
    # type(), because reading ``__class__`` of a disposed tensor raises.
    return has_torch() and issubclass(type(thing), sys.modules["torch"].Tensor)


def is_torch_packed(thing: object) -> TypeIs[TorchPackedSequence]:
    """Return whether an object is a packed sequence of PyTorch."""
    return has_torch() and isinstance(thing, sys.modules["torch.nn.utils.rnn"].PackedSequence)
