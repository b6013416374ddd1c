"""Optional frameworks, taught when the program has them: nothing is imported that the program did not import itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

__all__ = ["AWAITED", "await_module", "look_for_arrivals", "modules_seen"]

AWAITED: Final[dict[str, tuple[Callable[[], None], ...]]] = {}
"""For the name of a module that the program may import, what to do once it has."""

modules_seen: Final[list[int]] = [0]
"""How many modules there were at the last look: a scope looks again only when the number has changed."""


def await_module(name: str, teach: Callable[[], None]) -> None:
    """Call `teach` once, when a scope is entered (or a type is met) after the program has imported a module."""
    AWAITED[name] = (*AWAITED.get(name, ()), teach)
    modules_seen[0] = 0


def look_for_arrivals() -> None:
    """Teach the library the frameworks that the program has imported since the last look."""
    modules_seen[0] = len(sys.modules)
    for name in list(AWAITED):
        module = sys.modules.get(name)
        # A module that is being imported is there already, half made: it is taught at a later look.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            for teach in AWAITED.pop(name, ()):
                teach()
        elif module is not None:
            modules_seen[0] = 0
