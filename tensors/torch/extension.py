"""The compiled part for births and disposal of PyTorch's tensors."""

from __future__ import annotations

from typing import Any, Final

from ...scopes.extension import load_extension

__all__ = [
    "TORCH_COMPILED",
]

TORCH_COMPILED: Final[Any] = load_extension(f"{__package__}.compiled")
"""The compiled part, described in ``compiled.pyi``."""
