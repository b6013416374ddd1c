"""The compiled part for births and disposal of PyTorch's tensors."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from ...scopes.extension import COMPILED

__all__ = [
    "TORCH_COMPILED",
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
