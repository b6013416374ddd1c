"""Whether there is an arena: its compiled part was built, and knows this NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__all__ = [
    "ARENA",
]


def _arena() -> Any:
    try:
        return import_module(".compiled", __package__)
    except ImportError:
        return None


ARENA: Final[Any] = _arena()
"""The compiled part, described in ``compiled.pyi``; None where there is none."""
