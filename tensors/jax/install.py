"""Registers JAX as a framework of scopes. Imports nothing of JAX."""

from __future__ import annotations

from functools import cache

from ...scopes.base.process import PATCHES, version_of, warn_without_raising
from ...scopes.framework import Framework, register_lazily

__all__ = [
    "load",
]


@cache
def load() -> Framework | None:
    """Return JAX as a framework; None, with a warning, for a version of JAX that does not fit."""
    try:
        from .framework import JaxFramework
    except (ImportError, AttributeError) as error:
        # The private functions that are used here change from version to version.
        warn_without_raising(f"scopes do not own arrays of this version of JAX: {error}")
        PATCHES.note_unwatched(f"jax {version_of('jax')}: arrays of JAX")
        return None
    return JaxFramework()


register_lazily("jax", load)
