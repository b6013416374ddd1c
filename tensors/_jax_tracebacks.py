"""The traceback that JAX keeps of the birth of each array, which tells whose it is."""

from __future__ import annotations

import os
from importlib import import_module
from types import CodeType
from typing import Any, Final

__all__ = ["frames_of", "is_constant"]

_HOME: Final = os.path.dirname(str(import_module("jax").__file__)) + os.sep
# What is computed while a function is traced, or lowered, is a constant of its compiled code, which keeps it.
_TRACERS: Final = (os.path.join("interpreters", "partial_eval.py"), os.path.join("interpreters", "mlir.py"))
_verdicts: Final[dict[int, tuple[CodeType, bool]]] = {}
_REMEMBERED_AT_MOST: Final = 20_000

_Frames = tuple[list[CodeType], list[int]]


def is_constant(codes: list[CodeType]) -> bool:
    """Whether what was born below these codes is a constant of compiled code."""
    return any(_traces(code) for code in codes)


def _traces(code: CodeType) -> bool:
    known = _verdicts.get(id(code))
    if known is None:
        if len(_verdicts) >= _REMEMBERED_AT_MOST:
            _verdicts.clear()
        known = _verdicts[id(code)] = code, code.co_filename.startswith(_HOME) and code.co_filename.endswith(_TRACERS)
    return known[1]


def frames_of(array: Any) -> _Frames:
    """Codes and instructions of the stack on which an array was born, innermost first; empty where JAX kept none."""
    traceback = array.traceback
    if traceback is None:
        return [], []
    frames: _Frames = traceback.raw_frames()
    return frames
