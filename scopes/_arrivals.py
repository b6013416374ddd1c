"""Optional frameworks, taught when the program has them: nothing is imported that the program did not import itself."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final, final

from ._current import current_scope
from ._instruments import LISTENERS

__all__ = ["AWAITED", "await_module", "look_for_arrivals", "modules_seen"]

AWAITED: Final[dict[str, tuple[Callable[[], None], ...]]] = {}
"""For the name of a module that the program may import, what to do once it has."""

modules_seen: Final[list[int]] = [0]
"""How many modules there were at the last look: a scope looks again only when the number has changed."""


def await_module(name: str, teach: Callable[[], None]) -> None:
    """Call `teach` once, when the program has imported a module.

    That is when a scope is entered (or a type is met) after the import, or at its end where a scope is open then.
    """
    AWAITED[name] = (*AWAITED.get(name, ()), teach)
    modules_seen[0] = 0


def look_for_arrivals() -> None:
    """Teach the library the frameworks that the program has imported since the last look."""
    modules_seen[0] = len(sys.modules)
    for name in list(AWAITED):
        module = sys.modules.get(name)
        # A module that is being imported is there already, half made: it is taught at a later look.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _teach(name)
        elif module is not None:
            modules_seen[0] = 0
    _watch_imports()


def _teach(name: str) -> None:
    for teach in AWAITED.pop(name, ()):
        teach()


def _watch_imports() -> None:
    """See imports as long as a module is awaited: one may be imported while a scope is open."""
    if AWAITED and _LOOKOUT not in sys.meta_path:
        sys.meta_path.insert(0, _LOOKOUT)
    elif not AWAITED and _LOOKOUT in sys.meta_path:
        sys.meta_path.remove(_LOOKOUT)


@final
class _Lookout(importlib.abc.MetaPathFinder):
    """Finds nothing, but sees the import of an awaited module where a scope is open, or births are watched."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that the other finders have for an awaited module, with a loader that tells when it is there."""
        if name not in AWAITED or (current_scope() is None and not LISTENERS):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if type(spec.loader) is SourceFileLoader:
                    _tell_when_executed(name, spec.loader)
                return spec
        return None


def _tell_when_executed(name: str, loader: SourceFileLoader) -> None:
    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        _teach(name)

    loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader


_LOOKOUT: Final = _Lookout()
