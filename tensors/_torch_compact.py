"""Giving a small view of a big tensor memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..scopes._errors import DisposeScopeError

__all__ = ["make_compact"]

_C: Final[Any] = torch._C
_swap: Final[Callable[[Tensor, Tensor], None]] = _C._swap_tensor_impl


def make_compact(tensor: Any) -> None:
    """Put a copy behind a tensor that is a view and uses less memory than it pins. Its values and its graph stay.

    Graphs, views and exports that have the old implementation keep it.

    Raises
    ------
    DisposeScopeError
        C++ refers weakly to the implementation, as after ``retain_grad()``. The tensor is left as it is.
    """
    with _C.DisableTorchFunction():
        cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
            return
        if tensor.device.type == "meta" or tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes():
            return
        with torch.inference_mode(tensor.is_inference()), torch.set_grad_enabled(not tensor.is_leaf):
            copy = tensor.clone()
        if tensor.is_leaf and tensor.requires_grad:
            copy.requires_grad_()
            copy.grad = tensor.grad
        try:
            _swap(tensor, copy)
        except RuntimeError as error:
            raise DisposeScopeError(
                f"a torch.Tensor {tuple(tensor.shape)} {tensor.dtype} cannot be made compact, because its gradient is "
                f"retained (retain_grad()) or C++ refers to it: move out a clone of it ({error})"
            ) from None
