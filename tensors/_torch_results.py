"""What a call of PyTorch returned: what of it is new and may be owned by a scope."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, MethodWrapperType
from typing import Any, Final

from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter

from ..scopes._births import born
from ..scopes._entry import LIVE, entry_of
from ..scopes._kinds import Kind
from ._charges import BUDGETED
from ._torch_charges import refusal_of
from ._torch_disposal import Spare, can_be_disposed
from ._torch_makers import births_count

__all__ = [
    "GIVEN_UP",
    "KIND",
    "SIGHTINGS",
    "births_in",
    "flattened",
    "give_up",
    "given_to_a_grad",
    "is_born",
    "is_known",
]

_SEQUENCES: Final = frozenset({list, tuple})
_ACCESSORS: Final = frozenset({"grad", "_grad", "_base", "grad_fn"})

KIND: Final[list[Kind]] = []
"""The kind of ``torch.Tensor``, once births are seen."""

SIGHTINGS: Final[list[Callable[[Any, Any, Any, Any], object]]] = []
"""Told of what compiled functions and transforms return, and their arguments, while a leak detector is open."""

GIVEN_UP: Final[list[Callable[[Any], object]]] = []
"""Told of what is given up, while a leak detector is open."""


def is_known(result: object, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a tensor that a call returned was there before: an argument, in one, tracked, or an attribute."""
    for argument in args:
        if argument is result:
            return True
    if id(result) in LIVE or (type(func) is MethodWrapperType and _accesses(func)):
        return True
    if kwargs and any(value is result for value in kwargs.values()):
        return True
    return any(type(argument) in _SEQUENCES and any(item is result for item in argument) for argument in args)


def _accesses(func: Any) -> bool:
    """Whether a getter returns what is there already."""
    return getattr(func.__self__, "__name__", "") in _ACCESSORS


def births_in(
    result: object, func: Any = None, args: Any = (), kwargs: Any = None, frame: FrameType | None = None
) -> MemoryError | None:
    """Record the tensors in what a call returned, which is no plain tensor: a container, or a tensor of a subclass.

    Returns
    -------
    MemoryError or None
        What to raise where a budget refuses; then nothing is recorded.
    """
    for see in SIGHTINGS:
        see(result, func, args, kwargs)
    cls = type(result)
    if not issubclass(cls, (tuple, list, dict, Tensor)) or (type(func) is MethodWrapperType and _accesses(func)):
        return None
    leaves: list[object] = flattened(result, 3)
    fresh = [item for item in leaves if id(item) not in LIVE and is_born(type(item))]
    if not fresh:
        return None
    given = {id(item) for item in flattened((args, kwargs), 3)}
    fresh = [item for item in fresh if id(item) not in given]
    if fresh and births_count(frame):
        if BUDGETED:
            refusal = refusal_of(fresh, (args, kwargs))
            if refusal is not None:
                return refusal
        kind = KIND[0]
        for item in fresh:
            # A result may be there twice.
            if id(item) not in LIVE:
                born(item, kind)
    return None


def flattened(tree: Any, levels: int) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, as far down as a result of PyTorch goes."""
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is Tensor or levels < 0 or not issubclass(cls, (list, tuple, dict)):
        return [tree]
    leaves: list[Any] = []
    for child in tree.values() if issubclass(cls, dict) else tree:
        if type(child) is Tensor:
            leaves.append(child)
        else:
            leaves.extend(flattened(child, levels - 1))
    return leaves


def is_born(cls: type) -> bool:
    """Whether a scope may own the instances of a class: tensors that are no parameters, and can go dead."""
    return cls is Tensor or (
        issubclass(cls, Tensor)
        and not issubclass(cls, (Parameter, UninitializedBuffer, UninitializedParameter, Spare))
        and can_be_disposed(cls)
    )


def given_to_a_grad(func: Any, args: Any) -> None:
    """A tensor that is assigned to ``.grad`` belongs to the parameter."""
    if getattr(func.__self__, "__name__", "") in _ACCESSORS and len(args) > 1:
        give_up(args[1])


def give_up(tensor: object) -> None:
    """Let no scope own a tensor: it is the model's."""
    for told in GIVEN_UP:
        told(tensor)
    entry = entry_of(tensor)
    if entry is not None and entry.owner is not None and entry.unit is None:
        entry.owner.detach(tensor)
