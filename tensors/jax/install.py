"""Says what to do once the program has JAX. Imports nothing of it."""

from __future__ import annotations

from warnings import warn

from ...scopes.kinds import await_module

__all__ = [
    "install",
]


def install() -> None:
    """Teach the scopes JAX. Called once, when a scope is entered after the program has imported ``jax``."""
    try:
        from .adapter import teach
    except (ImportError, AttributeError) as error:
        # What is not in its public interface is another in each version.
        warn(f"scopes do not own arrays of this version of JAX: {error}", RuntimeWarning, stacklevel=2)
    else:
        teach()


await_module("jax", install)
