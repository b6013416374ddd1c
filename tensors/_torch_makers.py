"""Whether what a call of PyTorch made is a birth, by what is going on and by the code that called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Final

import torch

from ..scopes._current import CURRENT, resolve

__all__ = [
    "MAKERS",
    "backward_running",
    "births_by_frames",
    "births_count",
    "births_now",
    "copies_a_module",
    "keeps_births",
    "transform_running",
    "verdict",
]

_C: Final[Any] = torch._C
_tensor: Final[Any] = import_module("torch._tensor")
backward_running: Final[Callable[[], int]] = _C._current_graph_task_id
"""The number of the backward pass that is running on this thread; -1 where none is."""
transform_running: Final[Callable[[], Any]] = _C._functorch.peek_interpreter_stack
"""The transform that is running on this thread; None where none is."""

# Code of PyTorch itself that keeps what it makes: its calls make no births. The verdict on each code is remembered.
_KEEPERS: Final = ("torch.optim", "torch.nn.modules.module", "torch.nn.modules.lazy", "torch.amp.grad_scaler")
_HANDS_OUT: Final = frozenset({"scale", "apply_scale"})
# Functions that make a tensor once and keep it for the process, and others that keep copies for a backward pass.
_CACHES: Final = frozenset(
    {
        ("torch.nested._internal.nested_tensor", "_nt_view_dummy"),
        ("torch.nested._internal.nested_tensor", "_store_val_in_tensor"),
        ("torch.autograd.graph", "maybe_clone"),
        ("torch.utils.checkpoint", "_detach_helper"),
        ("torch.nn.modules.linear_cross_entropy", "_linear_cross_entropy_batch_chunked_setup_context"),
    }
)
# What a mode does not see: states of generators, which are kept for what is computed again later, and the parameters
# of a compiled module, which were there.
_HIDDEN_KEEPERS: Final = ("torch.random", "torch.cuda.random", "torch.jit._script")
# What a module calls may be compiled, and without a frame of its own.
_CALLS: Final = frozenset({"_call_impl", "_slow_forward", "_wrapped_call_impl"})
# Code of PyTorch that only does what its caller wants: it is judged by the caller.
_PASSING: Final = (
    "torch._decomp",
    "torch._library",
    "torch._meta_registrations",
    "torch._ops",
    "torch._prims",
    "torch._refs",
    "torch._tensor",
    "torch._utils",
    "torch.functional",
    "torch.nested._internal",
    "torch.nn.functional",
    "torch.utils._device",
    "torch.utils._stats",
)
# Tensors without memory, which stand for others: also what a graph is made with, and keeps.
_STANDINS: Final = "torch._subclasses."
# In whose frames functions run that are not to be compiled.
_ASIDE: Final = "torch._dynamo.eval_frame"
_TRACING: Final = ("torch._dynamo.", "torch._export.", "torch._functorch.", "torch.export.", "torch.fx.")
_MAKES, _KEEPS, _PASSES, _ASKS = range(1, 5)
_REMEMBERED_AT_MOST: Final = 20_000
MAKERS: Final[dict[int, CodeType]] = {}
_keepers: Final[dict[int, CodeType]] = {}
"""Code by its id, which is safe because it is held here: the hash of a code object is that of its instructions."""
_THROUGH: Final = torch.overrides.handle_torch_function.__code__
_DEEPCOPY: Final[CodeType] = vars(torch.Tensor)["__deepcopy__"].__code__
# A call for a subclass makes a plain tensor, and of that, elsewhere, one of the subclass: that one is the result.
_FOR_A_SUBCLASS: Final[CodeType] = vars(torch.Tensor)["__torch_function__"].__func__.__code__
_OF_A_SUBCLASS: Final[CodeType] = _tensor._convert.__code__


def births_count(frame: FrameType | None) -> bool:
    """Whether what a call made in a frame returns is a birth, given that a scope is entered in this context."""
    scope = CURRENT.get()
    if scope is None or not (scope._direct or resolve(scope) is not None):
        return False
    if backward_running() != -1 or transform_running() is not None:
        return False
    if frame is None:
        return True
    code = frame.f_code
    if code is _THROUGH:
        # A function of PyTorch that is written in Python comes here through two frames of PyTorch's own.
        frame = frame.f_back and frame.f_back.f_back
        if frame is None:
            return True
        if frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy" and copies_a_module(frame):
            return False
        code = frame.f_code
    return id(code) in MAKERS or (id(code) not in _keepers and _judge(frame))


def births_now() -> bool:
    """Whether what a function of this library makes now is born, by the rules for what a call of PyTorch's makes."""
    scope = CURRENT.get()
    return (
        scope is not None
        and (scope._direct or resolve(scope) is not None)
        and backward_running() == -1
        and transform_running() is None
    )


def _judge(frame: FrameType) -> bool:
    """Whether what the code of a frame calls makes births: not where it is PyTorch's own, and keeps what it makes."""
    code = frame.f_code
    module = frame.f_globals.get("__name__")
    if len(MAKERS) >= _REMEMBERED_AT_MOST:
        MAKERS.clear()
    keeps = type(module) is str and keeps_births(module, code)
    (_keepers if keeps else MAKERS)[id(code)] = code
    return not keeps


def keeps_births(module: str, code: CodeType) -> bool:
    """Whether code, given with the name of its module, is PyTorch's own and keeps what it makes."""
    if (module, code.co_name) in _CACHES:
        return True
    return module.startswith(_KEEPERS) and code.co_name not in _HANDS_OUT


def verdict(code: CodeType, module: object) -> int:
    """What code is to births that are seen where they happen, in the order of ``enum verdict``."""
    if type(module) is not str or not module.startswith("torch."):
        return _MAKES
    if code is _DEEPCOPY or module.startswith(_STANDINS):
        return _ASKS
    if code is _OF_A_SUBCLASS:
        return _MAKES
    if code is _FOR_A_SUBCLASS:
        return _KEEPS
    if module == "torch.nn.modules.module" and code.co_name in _CALLS:
        return _PASSES
    if module.startswith(_HIDDEN_KEEPERS) or keeps_births(module, code):
        return _KEEPS
    return _PASSES if module.startswith(_PASSING) else _MAKES


def births_by_frames() -> bool:
    """Whether what runs now makes a birth, where its code alone does not tell.

    What ``Tensor.__deepcopy__`` makes is none in the copy of a module, which is the model's; what stands for a tensor
    is none while a graph is made.
    """
    asked = _getframe(1)
    if asked.f_globals.get("__name__", "").startswith(_STANDINS):
        return not _makes_a_graph(asked)
    frame: FrameType | None = asked
    while frame is not None and frame.f_code is not _DEEPCOPY:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is None or not copies_a_module(caller)


def _makes_a_graph(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if type(module) is str and module.startswith(_TRACING) and module != _ASIDE:
            return True
        frame = frame.f_back
    return False


def copies_a_module(frame: FrameType) -> bool:
    """Whether ``copy.deepcopy``, given its innermost frame, is at work on a module."""
    found: FrameType | None = frame
    while found is not None and found.f_globals.get("__name__") == "copy":
        if found.f_code.co_name == "deepcopy" and isinstance(found.f_locals.get("x"), torch.nn.Module):
            return True
        found = found.f_back
    return False
