"""Attention in eval mode takes its fused path in a scope as it does outside.

``torch.nn`` leaves that path, whose results differ in the last bits, where ``torch.overrides.has_torch_function`` says
that somebody overrides functions. A mode that only looks on is not meant by that question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.jit import _builtins

from ._torch_modes import LOCAL

__all__ = ["keep_fast_paths"]

_C: Final[Any] = torch._C
_push: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
_pop: Final[Callable[[], Any]] = _C._pop_torch_function_stack
_depth: Final[Callable[[], int]] = _C._len_torch_function_stack
_overrides: Final[Any] = torch.overrides
_asks: Final[Callable[[Any], bool]] = _overrides.has_torch_function


def _has_torch_function(args: Any) -> bool:
    """Whether somebody other than this library overrides functions of PyTorch for these arguments."""
    if torch.compiler.is_compiling():
        # Dynamo takes this test for a constant, and knows the same question by this name.
        return torch.overrides.has_torch_function_variadic(*args)
    ours = LOCAL.here.modes
    depth = _depth()
    if not depth or depth > len(ours):
        return _asks(args)
    modes = [_pop() for _ in range(depth)]
    try:
        return any(not any(mode is one for one in ours) for mode in modes) or _asks(args)
    finally:
        for mode in reversed(modes):
            _push(mode)


def keep_fast_paths() -> None:
    """Answer for ``torch.overrides.has_torch_function`` from now on."""
    register: Callable[[Any, str], None] = vars(_builtins)["_register_builtin"]
    register(_has_torch_function, "aten::has_torch_function")
    _overrides.has_torch_function = _has_torch_function
