"""What could not be changed in the libraries that are installed, for tests."""

from __future__ import annotations

from disposescope.scopes.base.process import PATCHES


def guard_fails(name: str) -> bool:
    """Return whether the guard of the patch of this name fails: see the command doctor."""
    return any(row.failures for row in PATCHES.rows() if name in row.patch.name)
