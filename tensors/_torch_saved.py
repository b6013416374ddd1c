"""What hooks on saved tensors keep for a backward pass belongs to the graph: no scope owns it.

``torch.autograd.graph.saved_tensors_hooks`` gives its hook a tensor, and keeps what the hook returns, inside of an
operator, where nobody receives a tensor: what the hook makes is not born. Where it returns the tensor itself, the graph
would keep the very handle that dies with its scope; it keeps another one of the same memory instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import Parameter

from ..scopes._current import CURRENT

__all__ = ["keep_what_hooks_save"]

_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction

_Hook = Callable[[Any], Any]


def _called(hook: _Hook, tensor: Any) -> Any:
    return hook(tensor)


def _for_the_graph(hook: _Hook, call: Callable[[_Hook, Any], Any]) -> _Hook:
    @functools.wraps(hook)
    def packed(tensor: Any) -> Any:
        if CURRENT.get() is None or issubclass(type(tensor), Parameter):
            return hook(tensor)
        return _without(tensor, call(hook, tensor))

    return packed


def _without(tensor: Any, kept: Any) -> Any:
    """What is to be kept, with another handle in the place of a tensor's own."""
    if kept is tensor:
        # Nobody sees functions called in here, and nothing is born.
        with _Undisturbed():
            return tensor.detach()
    if type(kept) in (tuple, list) and any(item is tensor for item in kept):
        return type(kept)(_without(tensor, item) for item in kept)
    return kept


def keep_what_hooks_save(call: Callable[[_Hook, Any], Any] | None) -> None:
    """Let no scope own what hooks on saved tensors keep, from now on.

    Parameters
    ----------
    call : callable, optional
        What calls a function with one argument so that nothing is born by it. Without one, nobody sees births there.
    """
    hooks: Any = saved_tensors_hooks
    push = _C._autograd._push_saved_tensors_default_hooks
    enter = hooks.__enter__

    @functools.wraps(enter)
    def __enter__(self: Any) -> None:
        if torch.compiler.is_compiling():
            enter(self)
        else:
            push(_for_the_graph(self.pack_hook, call or _called), self.unpack_hook)

    hooks.__enter__ = __enter__
