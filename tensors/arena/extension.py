"""The compiled part of the arena, imported so that a missing build is explained."""

from __future__ import annotations

from typing import Any, Final

from ...scopes import load_extension

__all__ = [
    "ARENA",
]

ARENA: Final[Any] = load_extension(f"{__package__}.compiled")
"""The compiled part, described in ``compiled.pyi``."""
