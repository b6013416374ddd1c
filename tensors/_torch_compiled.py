"""Functions of ``torch.compile``: compiled and run as if no scope were open, and what they return is born.

Dynamo guards on the stack of function modes, and would trace ours: each function would be compiled once more for the inside
of a scope. So the mode is off the stack while Dynamo evaluates frames, which is exactly as long as it has set its callback.
Every entry into compiled code and every way out of it calls ``torch._dynamo.eval_frame._maybe_set_eval_frame``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Final

from ..scopes._errors import DisposedError
from ._torch_births import LOCAL, births_in, put_on, take_off

__all__ = ["watch_compiled_functions"]

_EVAL_FRAME: Final = "torch._dynamo.eval_frame"
_WRAPPER: Final = "compile_wrapper"


def watch_compiled_functions() -> None:
    """Hear of compiled code that begins and ends; as soon as the program imports Dynamo, where it has not yet."""
    module = sys.modules.get(_EVAL_FRAME)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        sys.meta_path.insert(0, _Lookout())
    else:
        _watch(module)


def _watch(module: Any) -> None:
    set_callback: Callable[[Any], Any] = module._maybe_set_eval_frame

    def _maybe_set_eval_frame(callback: Any) -> Any:
        here = LOCAL.here
        if callback is None or callback is False:
            if here.compiled:
                here.compiled = False
                if here.watched:
                    put_on()
                # The one frame that calls us on the way out has the result.
                _hand_over_result(sys._getframe(1))
        elif not here.compiled:
            here.compiled = True
            if here.watched:
                take_off()
        before = set_callback(callback)
        if callback is None:
            _tell_of_disposed(sys.exc_info()[1])
        return before

    module._maybe_set_eval_frame = _maybe_set_eval_frame


def _hand_over_result(frame: FrameType) -> None:
    if frame.f_code.co_name != _WRAPPER or not LOCAL.here.watched:
        return
    local = frame.f_locals
    result = local.get("result")
    if result is not None:
        births_in(result, args=local.get("args", ()), kwargs=local.get("kwargs"), frame=None)


def _tell_of_disposed(error: BaseException | None) -> None:
    """Dynamo wraps what goes wrong while it looks at an argument: whoever calls a compiled function sees what it was."""
    if type(error).__name__ != "InternalTorchDynamoError":
        return
    cause = error
    while cause is not None and not isinstance(cause, DisposedError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        raise DisposedError(str(cause), resource=cause.resource) from None


class _Lookout(importlib.abc.MetaPathFinder):
    """Finds nothing, but sees the import of the module that it waits for, once."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the awaited module, with a loader that tells when the module is there."""
        if name != _EVAL_FRAME:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
