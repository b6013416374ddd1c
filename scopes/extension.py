"""Whether the compiled part of this room is there and in use."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

__all__ = [
    "COMPILED",
]


def _is_main_interpreter() -> bool:
    threads: Any = import_module("_thread")
    if hasattr(threads, "_is_main_interpreter"):  # since Python 3.12
        return bool(threads._is_main_interpreter())
    interpreters: Any = import_module("_xxsubinterpreters")
    return bool(interpreters.get_current() == interpreters.get_main())


def _compiled() -> Any:
    if not _is_main_interpreter():
        raise ImportError("disposescope works in the main interpreter only, and this is a subinterpreter")
    if os.environ.get("DISPOSESCOPE_PURE_PYTHON", "0") not in ("", "0") or "t" in sys.abiflags:
        return None
    try:
        return import_module(".compiled", __package__)
    except ModuleNotFoundError:
        # It was not built.
        return None


COMPILED: Final[Any] = _compiled()
"""The compiled part, described in ``compiled.pyi``; None where there is none."""
