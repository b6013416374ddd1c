"""Whether anybody looks on while PyTorch's tensors are packed and padded, and whether a graph is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from ..scopes._instruments import LISTENERS
from ..tensors._torch_births import MODE
from ..tensors._torch_extension import TORCH_HOT
from ..tensors._torch_modes import WATCHES

__all__ = [
    "BelowAutograd",
    "Undisturbed",
    "aside",
    "fast_dtypes",
    "is_plain_cpu",
    "needs_grad",
    "only_ours_look_on",
    "plain_classes",
    "quietly",
    "underived",
    "unseen",
    "unwatched",
]

Given = TypeVar("Given")
Made = TypeVar("Made")

_C: Final[Any] = torch._C
_forward_ad: Final[Any] = torch.autograd.forward_ad
_function_modes: Final[Callable[[], int]] = _C._len_torch_function_stack
_function_mode_at: Final[Callable[[int], Any]] = _C._get_function_stack_at
_dispatch_modes: Final[Callable[[], int]] = _C._len_torch_dispatch_stack
_transform: Final[Callable[[], Any]] = _C._functorch.peek_interpreter_stack
_tracing: Final[Callable[[], Any]] = _C._get_tracing_state
_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
_is_compiling: Final[Callable[[], bool]] = torch.compiler.is_compiling

Undisturbed: Final[Any] = _C.DisableTorchFunction
"""Inside of this nobody sees what is made on the way: what comes out is born as a whole."""

BelowAutograd: Final[Any] = _C._AutoDispatchBelowADInplaceOrView
"""Inside of this no graph is made, and no view of what is made on the way is known as one.

PyTorch's kernels that consist of a handful of its other operators take three quarters of their time here, where those
do not each look for a graph; a single operator saves less than it takes to come and go. Only where there is
nothing to derive: see `underived`, and `needs_grad`.
"""

plain_classes: Final = frozenset({Tensor, torch.nn.Parameter})
"""Classes whose tensors behave as PyTorch's own."""

fast_dtypes: Final = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip


def only_ours_look_on() -> bool:
    """Whether nobody but this library sees functions called: a mode, or a leak detector, shall see PyTorch's own."""
    depth = _function_modes()
    return not WATCHES and (not depth or (depth == 1 and _function_mode_at(0) is MODE))


def unwatched() -> bool:
    """Whether tensors may be moved here by other calls than PyTorch's own functions make.

    Under a leak detector, a mode or a transform, while a graph is traced, and while derivatives go forward,
    PyTorch's functions must be called themselves.
    """
    depth = _function_modes()
    return (
        not WATCHES
        and (not depth or (depth == 1 and _function_mode_at(0) is MODE))
        and not _dispatch_modes()
        and _transform() is None
        and _tracing() is None
        and _forward_ad._current_level < 0
        and not _is_compiling()
    )


def _called(function: Callable[[Any], Any], given: Any) -> Any:
    return function(given)


_unborn: Final[Callable[[Callable[[Any], Any], Any], Any]] = _called if TORCH_HOT is None else TORCH_HOT.unborn


def unseen(function: Callable[[Given], Made], given: Given) -> Made:
    """What a function makes of what it is given. Nobody sees what it makes on the way: what comes out is born whole."""
    if _function_modes() or LISTENERS:
        with Undisturbed():
            return function(given)
    if _is_compiling():
        return function(given)
    # Without a mode only this library sees births, where it is compiled.
    made: Made = _unborn(function, given)
    return made


def _not_known(function: Callable[[Any], Any], given: Any) -> Any:
    return NotImplemented


_alone: Callable[[Callable[[Any], Any], Any], Any] = _not_known
if TORCH_HOT is not None:
    TORCH_HOT.bind_alone(
        {"LISTENERS": LISTENERS, "WATCHES": WATCHES, "forward_ad": vars(_forward_ad), "transform": _transform}
    )
    _alone = TORCH_HOT.alone


def aside(function: Callable[[Given], Made], given: Given) -> Made | None:
    """As `unseen`; None where somebody looks on: see `unwatched`."""
    if not _is_compiling():
        made = _alone(function, given)
        if made is not NotImplemented:
            known: Made = made
            return known
        if unwatched():
            return unseen(function, given)
    return None


def underived() -> bool:
    """Whether derivatives are made by graphs alone: neither by a transform of PyTorch's, nor forward."""
    return _transform() is None and _forward_ad._current_level < 0


def is_plain_cpu(tensor: Tensor) -> bool:
    """Whether a tensor of a plain class is dense, on the CPU, of a common dtype, and has a first axis."""
    return (
        tensor.is_cpu
        and tensor.dtype in fast_dtypes
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.dim() > 0
    )


def needs_grad(tensors: Iterable[Tensor]) -> bool:
    """Whether what is made of some tensors has a history."""
    return _grad_enabled() and any([tensor.requires_grad for tensor in tensors])  # noqa: C419  # a list is faster


def quietly(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Around a call of PyTorch's own function: nothing on the way is born, unless somebody else shall see it."""
    ours = plain_classes.issuperset(map(type, tensors)) and only_ours_look_on()
    return Undisturbed() if ours and not torch.compiler.is_compiling() else nullcontext()
