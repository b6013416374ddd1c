"""The compiled parts for PyTorch: for births and disposal, and for calls under a leak detector."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from ...leaks.births.log import LOG
from ...scopes.extension import COMPILED

__all__ = [
    "TORCH_COMPILED",
    "TORCH_WATCH",
]


def _load_compiled() -> Any:
    if COMPILED is None:
        return None
    try:
        return import_module(".compiled", __package__)
    except ImportError:
        return None


TORCH_COMPILED: Final[Any] = _load_compiled()
"""The compiled part, described in ``compiled.pyi``; None where there is none."""


def compiled_calls() -> Any:
    try:
        return import_module(".compiled_calls", __package__) if LOG.api is not None else None
    except ImportError:
        return None


TORCH_WATCH: Final[Any] = compiled_calls()
"""The part that a leak detector watches with, described in ``compiled_calls.pyi``; None where there is none."""
