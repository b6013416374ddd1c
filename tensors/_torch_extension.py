"""Whether what every call of PyTorch goes through runs compiled: see ``scopes._compiled``, and the log of births."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from ..scopes._compiled import HOT
from ..scopes.leaks._log import LOG

__all__ = ["TORCH_HOT", "TORCH_WATCH"]


def _torch_hot() -> Any:
    if HOT is None:
        return None
    try:
        module = import_module("._torch_hot", __package__)
    except ImportError:
        return None
    # A second copy of this package in one process is served by its Python code.
    return None if module.is_bound() else module


TORCH_HOT: Final[Any] = _torch_hot()
"""The compiled part, described in ``_torch_hot.pyi``; None where there is none."""


def _torch_watch() -> Any:
    try:
        return import_module("._torch_watch", __package__) if LOG.api is not None else None
    except ImportError:
        return None


TORCH_WATCH: Final[Any] = _torch_watch()
"""The part that a leak detector watches with, described in ``_torch_watch.pyi``; None where there is none."""
