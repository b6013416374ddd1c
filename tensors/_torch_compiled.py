"""Functions of ``torch.compile``: compiled and run as if no scope were open, and what they return is born.

Dynamo guards on the stack of function modes, and would trace ours: each function would be compiled once more for the
inside of a scope. So the mode is off the stack while a compiled function runs. Every call of one sets Dynamo's callback
at its beginning and resets it on every way out, by ``torch._dynamo.eval_frame._maybe_set_eval_frame``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ..scopes._errors import DisposedError
from ._torch_imports import when_imported
from ._torch_modes import LOCAL, is_looked_at, put_on, take_off
from ._torch_results import births_in

__all__ = ["watch_compiled_functions"]

_WRAPPER: Final = "compile_wrapper"


def watch_compiled_functions() -> None:
    """Hear of compiled code that begins and ends; as soon as the program imports Dynamo, where it has not yet."""
    when_imported("torch._dynamo.eval_frame", _watch)


def _watch(module: Any) -> None:
    set_callback: Callable[[Any], Any] = module._maybe_set_eval_frame

    def _maybe_set_eval_frame(callback: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code.co_name != _WRAPPER:
            return set_callback(callback)
        here = LOCAL.here
        if here.compiled is None:
            # None is also what the callback is where compilation is switched off: the function runs as it is then.
            if callback is not None and callback is not False:
                here.compiled = caller
                if here.watched and not here.stepping:
                    take_off()
            return set_callback(callback)
        before = set_callback(callback)
        if here.compiled is caller:
            here.compiled = None
            if not here.stepping:
                put_on()
                if is_looked_at(here):
                    _hand_over_result(caller)
            _tell_of_disposed(sys.exc_info()[1])
        return before

    module._maybe_set_eval_frame = _maybe_set_eval_frame


def _hand_over_result(frame: FrameType) -> None:
    local = frame.f_locals
    result = local.get("result")
    if result is not None:
        refusal = births_in(result, args=local.get("args", ()), kwargs=local.get("kwargs"), frame=None)
        if refusal is not None:
            raise refusal


def _tell_of_disposed(error: BaseException | None) -> None:
    """Raise what Dynamo wrapped when it looked at a disposed argument, so that the caller sees what it was."""
    if type(error).__name__ != "InternalTorchDynamoError":
        return
    cause = error
    while cause is not None and not isinstance(cause, DisposedError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        raise DisposedError(str(cause), resource=cause.resource) from None
