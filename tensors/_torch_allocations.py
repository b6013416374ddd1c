"""Seeing births where the Python object of a tensor gets its memory: each one, and nothing else.

PyTorch makes the Python object of a tensor by the allocating function of its class, whatever made the tensor: an
operator, a view, a function without a seam such as ``torch.from_numpy``. The compiled part stands in that place, for
the classes that are there and those to come, and asks whose the tensor will be: calls that make none cost nothing, and
no mode is on any stack. The rules are those of `_torch_makers`, less what a mode cannot see.

Whoever is to be told of births (a leak detector, a budget) is told when the call is over, by the mode: at the moment of
birth there is an address and nothing else.
"""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor

from ..scopes._compiled import HOT
from ..scopes._current import CURRENT, resolve
from ..scopes._entry import LIVE, Entry
from ..scopes._instruments import LISTENERS
from ..scopes._kinds import Kind
from ..scopes._scope_view import ScopeView
from ._charges import BUDGETED
from ._torch_births import MODE
from ._torch_charges import refusal_of
from ._torch_extension import TORCH_HOT
from ._torch_makers import births_by_frames, verdict
from ._torch_modes import LOCAL, add_mode, depth
from ._torch_results import flattened, give_up, is_born

__all__ = ["SEEN", "see_allocations", "tell", "tell_late"]

_C: Final[Any] = torch._C
_tensor: Final[Any] = import_module("torch._tensor")
_ATTRIBUTES: Final = ("grad", "_grad", "_base")

SEEN: Final[list[bool]] = []
"""Not empty where births are seen so."""


def _judge(code: CodeType, module: object) -> int:
    # Code that is new often comes with classes that are. Of one whose class does not call `__init__` of its own base
    # nobody has heard before.
    TORCH_HOT.watch_classes(tuple(_subclasses(Tensor)))
    return verdict(code, module)


def _summon() -> None:
    """Have the mode on this thread: somebody is to be told of births who was not when its scope was entered."""
    here = LOCAL.here
    # While a mode lets a call through it is off the stack: then is no time to change that.
    if depth() >= len(here.modes) and not any(mode is MODE for mode in here.modes):
        add_mode(here, MODE)


def tell(result: object, args: Any, kwargs: Any) -> None:
    """Tell of what was born on this thread and not told of: of what a call returned, in the first place.

    Raises
    ------
    MemoryError
        A budget refuses what the call returned. Of that nobody is told.
    """
    entries = LOCAL.here.untold
    LOCAL.here.untold = []
    fresh = [entry for entry in entries if LIVE.get(entry.key) is entry]
    try:
        refusal: MemoryError | None = None
        refused: set[int] = set()
        if BUDGETED:
            born = {entry.key for entry in fresh}
            returned = [leaf for leaf in flattened(result, 3) if id(leaf) in born]
            refusal = refusal_of(returned, (args, kwargs))
            if refusal is not None:
                refused = {id(leaf) for leaf in returned}
            del returned
        if LISTENERS:
            for entry in fresh:
                if entry.key not in refused:
                    TORCH_HOT.tell_of(entry)
        if refusal is not None:
            raise refusal
    finally:
        # This frame is in its traceback: kept here, what was refused would live on.
        del result, args, kwargs
        refusal = None


def tell_late() -> None:
    """Tell of what was born on this thread past the mode, before its scope is left."""
    if LOCAL.here.untold:
        tell(None, (), None)


def _subclasses(cls: Any) -> list[type]:
    found: dict[type, None] = {cls: None}
    pending: list[Any] = [cls]
    while pending:
        for below in type.__subclasses__(pending.pop()):
            if below not in found:
                found[below] = None
                pending.append(below)
    return list(found)


def see_allocations(kind: Kind) -> bool:
    """See births of PyTorch so from now on; False where there is no compiled part, or it does not know this PyTorch."""
    if TORCH_HOT is None or HOT is None:
        return False
    TORCH_HOT.bind_births(
        {
            "BUDGETED": BUDGETED,
            "CURRENT": CURRENT,
            "Entry": Entry,
            "LIVE": LIVE,
            "LISTENERS": LISTENERS,
            "ScopeView": ScopeView,
            "Tensor": Tensor,
            "ask": births_by_frames,
            "born_untold": HOT.born_untold,
            "give_up": give_up,
            "is_born": is_born,
            "judge": _judge,
            "kind": kind,
            "resolve": resolve,
            "summon": _summon,
            "tell": tell,
            "threading": threading,
        }
    )
    try:
        attributes = tuple(getattr(_C.TensorBase, name) for name in _ATTRIBUTES)
        transforms = int(_C.DispatchKey.FuncTorchDynamicLayerFrontMode)
    except AttributeError:
        return False
    libraries = sorted(str(path) for path in (Path(torch.__file__).parent / "lib").glob("lib*"))
    seen: bool = TORCH_HOT.watch_births(
        tuple(_subclasses(Tensor)),
        tuple(_subclasses(type(Tensor))),
        attributes,
        _C.TensorBase.numpy,
        vars(_tensor),
        tuple(path for path in libraries if "libc10." in path or "libtorch_cpu." in path or "libtorch." in path),
        transforms,
    )
    if seen:
        mode: Any = MODE
        mode.__torch_function__ = TORCH_HOT.handler_of(mode)
        SEEN.append(True)
    return seen
