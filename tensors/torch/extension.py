"""The compiled parts for PyTorch: for births and disposal, and for calls under a leak detector."""

from __future__ import annotations

from typing import Any, Final

from ...leaks.births.log import LOG
from ...scopes.extension import load_extension

__all__ = [
    "TORCH_COMPILED",
    "TORCH_WATCH",
]

TORCH_COMPILED: Final[Any] = load_extension(f"{__package__}.compiled")
"""The compiled part, described in ``compiled.pyi``."""

TORCH_WATCH: Final[Any] = load_extension(f"{__package__}.compiled_calls") if LOG.api is not None else None
"""The part that a leak detector watches with, described in ``compiled_calls.pyi``; None where the log is Python's."""
