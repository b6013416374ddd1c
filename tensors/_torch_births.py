"""Seeing births by a function mode that asks of each call whose birth it is, where `_torch_allocations` cannot.

The mode sees what calls of user-level code return, and nothing of what happens inside such a call. Modes are per
thread and scopes per context, so the mode asks for the current scope at each birth.
"""

from __future__ import annotations

from operator import attrgetter
from sys import _getframe, getrefcount
from types import MethodWrapperType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..scopes._births import born
from ..scopes._current import CURRENT
from ._charges import BUDGETED
from ._torch_charges import refusal_of
from ._torch_makers import MAKERS, backward_running, births_count, transform_running
from ._torch_results import KIND, births_in, given_to_a_grad, is_known

__all__ = ["MODE", "BirthMode"]

# Most calls that return no tensor return one of these.
_PLAIN: Final = frozenset({bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout})


def _references(func: Any, args: Any) -> int:
    result = func(*args)
    return getrefcount(result)


def _references_to_a_fresh_result() -> int:
    """What is counted, in the hot path, of a tensor that nobody else has; 0 where that is no test."""
    if transform_running() is not None:
        # Imported by the first use inside of a transform, which lets nobody go backward.
        return 0
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        weight: Any = torch.zeros(1, requires_grad=True)
        weight.sum().backward()
        fresh = _references(torch.exp, (weight,))
        accessed = _references(attrgetter("grad"), (weight,))
        returned = _references(torch.Tensor.detach_, (torch.zeros(1),))
    return fresh if fresh < min(accessed, returned) else 0


class BirthMode(TorchFunctionMode):
    """The mode: lets every call through, and records what it returned as born.

    `fresh` is what `_references_to_a_fresh_result` says: a gradient, a base or an argument that a call returns is
    held by somebody; what a call made is held by nobody yet.

    Where births are seen without it, it tells of them instead; its method is compiled then: see `_torch_hot_mode.c`.
    """

    fresh = 0

    def learn(self) -> None:
        """Find out what a fresh result looks like, before the mode sees births."""
        self.fresh = _references_to_a_fresh_result()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and record its result."""
        # The hot path of every call of PyTorch inside a scope.
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        cls: Any = type(result)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is Tensor:
            scope = CURRENT.get()
            if scope is None:
                return result
            if getrefcount(result) != self.fresh and is_known(result, func, args, kwargs):
                return result
            frame = _getframe(1)
            if (
                scope._direct
                and id(frame.f_code) in MAKERS
                and backward_running() == -1
                and transform_running() is None
            ) or births_count(frame):
                if BUDGETED:
                    refusal = refusal_of([result], (args, kwargs))
                    if refusal is not None:
                        # This frame is in its traceback: kept here, what was refused would live on.
                        del result
                        try:
                            raise refusal
                        finally:
                            del refusal
                born(result, KIND[0])
        elif result is None:
            if type(func) is MethodWrapperType and func.__name__ == "__set__":
                given_to_a_grad(func, args)
        elif cls not in _PLAIN and CURRENT.get() is not None:
            refusal = births_in(result, func, args, kwargs, _getframe(1))
            if refusal is not None:
                del result
                try:
                    raise refusal
                finally:
                    del refusal
        return result


MODE: Final = BirthMode()
