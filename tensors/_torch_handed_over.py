"""Memory that a tensor did not get by being made: it was handed a storage, or is handed to a model.

What unpickling and ``torch.load`` make of a storage is born where the tensor is given it. What becomes a parameter, a
buffer or a gradient is the model's, and is told of no more.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter

from ..scopes._devices import device_name
from ..scopes.leaks._log import LOG
from ._torch_makers import copies_a_module
from ._torch_storage import storage_of

__all__ = [
    "MODELS_OWN",
    "NAME",
    "UNDISTURBED",
    "assigned",
    "copying_a_module",
    "device_of",
    "exclude",
    "moved",
    "storage_undisturbed",
]

_C: Final[Any] = torch._C
_owners_of: Final[Callable[[int], int]] = _C._storage_Use_Count
UNDISTURBED: Final[Any] = _C.DisableTorchFunction
NAME: Final = "torch.Tensor"
MODELS_OWN: Final = (Parameter, UninitializedBuffer, UninitializedParameter)
_GRADIENTS: Final = frozenset({"grad", "_grad"})
_OURS: Final = __name__.partition(".")[0]
# Code of PyTorch that makes a tensor of what another process or a file handed over, and then sets its attributes.
_REBUILDS: Final = frozenset({"torch._utils", "torch.multiprocessing.reductions"})
# The tensor, and the object for the storage that is asked.
_OWNERS: Final = 2


def storage_undisturbed(tensor: Any) -> Any:
    """The storage of a tensor, or None, without that anybody sees it asked."""
    with UNDISTURBED():
        return storage_of(tensor)


def device_of(storage: Any) -> str | None:
    """The name of the device of a storage; None where it has no memory."""
    device = storage.device
    return None if device.type == "meta" else device_name(device)


def copying_a_module() -> bool:
    """Whether ``copy.deepcopy`` of a module runs here."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy":
            return copies_a_module(frame)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", _OURS):
            return False
        frame = frame.f_back
    return False


def moved(tensor: Any, op: Any, bound: Any, args: Any, kwargs: Any) -> None:
    """Put the memory down that a tensor was given, by ``set_`` or when it was made, where it is no other tensor's."""
    given: list[Any] = [*args[:1], *(kwargs or {}).values()]
    if not any(isinstance(one, Tensor) for one in given) and not copying_a_module():
        _see_handed_over(tensor, op)


def assigned(name: str, tensor: Any, value: Any) -> None:
    """A tensor that is assigned to ``.grad`` belongs to the parameter; one that gets its hooks was rebuilt perhaps."""
    if name in _GRADIENTS:
        exclude(value)
    elif _rebuilds(_getframe(1)):
        _see_handed_over(tensor)


def _rebuilds(frame: FrameType | None) -> bool:
    """Whether code of PyTorch makes a tensor that was handed over."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OURS:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _REBUILDS


def _see_handed_over(tensor: Any, op: Any = None) -> None:
    """Put the memory of a tensor down; not where the storage has more owners, for then it was there."""
    if issubclass(type(tensor), MODELS_OWN):
        exclude(tensor)
        return
    with UNDISTURBED():
        storage = storage_of(tensor) if isinstance(tensor, Tensor) else None
        if storage is None or LOG.recall_memory(storage) is not None:
            return
        if _owners_of(storage._cdata) > _OWNERS:
            return
        device = device_of(storage)
        nbytes = 0 if device is None else storage.nbytes()
    if nbytes:
        # Where it was not told what was called, that is the function of PyTorch that the user's line did.
        LOG.sight(storage, op, nbytes, NAME, device)


def exclude(tensor: Any) -> None:
    """Tell no more of the memory of a tensor: it is the model's."""
    if isinstance(tensor, Tensor):
        storage = storage_undisturbed(tensor)
        if storage is not None:
            LOG.exclude(storage)
