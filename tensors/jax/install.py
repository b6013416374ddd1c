"""JAX as a framework of scopes. Imports nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final
from warnings import warn

from ...scopes.framework import Framework, register
from ...scopes.kinds import Kind

__all__ = [
    "JaxFramework",
]


@final
class JaxFramework(Framework):
    """JAX. The modules of this room that import it are imported when the program has."""

    module = "jax"
    packages = ("jaxlib",)

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of ``jax.Array``; none where the version of JAX is not known, which a warning says."""
        try:
            from .adapter import KIND
        except (ImportError, AttributeError) as error:
            # What is not in its public interface is another in each version.
            warn(f"scopes do not own arrays of this version of JAX: {error}", RuntimeWarning, stacklevel=2)
            return []
        return [KIND]

    def install(self) -> None:
        """See births from now on."""
        try:
            from .adapter import array_in_key, install
            from .births import entered, left, look
        except (ImportError, AttributeError):
            return
        install()
        self.scope_entered, self.scope_left = entered, left  # type: ignore[method-assign]  # of this one instance
        self.find_births, self.children = look, array_in_key  # type: ignore[method-assign]  # likewise


register(JaxFramework())
