"""Whether the hot paths run compiled: the extension was built, and nobody asked for Python alone."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

__all__ = ["HOT"]


def _hot() -> Any:
    if os.environ.get("DISPOSESCOPE_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        module = import_module("._hot", __package__)
    except ImportError:
        # Not built, a subinterpreter, or an interpreter without its global lock.
        return None
    # A second copy of this package in one process is served by its Python code.
    return None if module.is_bound() else module


HOT: Final[Any] = _hot()
"""The compiled part, described in ``_hot.pyi``; None where there is none."""
