"""Optional frameworks, taught when the program has them: nothing is imported that the program did not import itself."""

from __future__ import annotations

import importlib.abc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final, final

from ._current import current_scope
from ._instruments import LISTENERS

__all__ = ["AWAITED", "await_module", "look_for_arrivals", "modules_seen"]

AWAITED: Final[dict[str, tuple[Callable[[], None], ...]]] = {}
"""For the name of a module that the program may import, what to do once it has."""

_teaching: Final = threading.RLock()
_under_way: Final[set[str]] = set()

modules_seen: Final[list[int]] = [0]
"""How many modules there were at the last look: a scope looks again only when the number has changed."""


def await_module(name: str, teach: Callable[[], None]) -> None:
    """Call `teach` once, when the program has imported a module.

    That is when a scope is entered (or a type is met) after the import, or at its end where a scope is open then.
    """
    AWAITED[name] = (*AWAITED.get(name, ()), teach)
    modules_seen[0] = 0


def look_for_arrivals() -> None:
    """Teach the library the frameworks that the program has imported since the last look.

    A framework is taught once. Who looks meanwhile, on another thread, waits until it is known.
    """
    seen = len(sys.modules)
    for name in list(AWAITED):
        module = sys.modules.get(name)
        # A module that is being imported is there already, half made: it is taught at a later look.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _teach(name)
        elif module is not None:
            seen = 0
    # Not before: until then others have to look, and to wait.
    modules_seen[0] = seen
    _watch_imports()


def _teach(name: str) -> None:
    with _teaching:
        if name in _under_way:
            # What is taught looks itself.
            return
        _under_way.add(name)
        try:
            taught = 0
            while taught < len(teachers := AWAITED.get(name, ())):
                taught += 1
                teachers[taught - 1]()
        finally:
            _under_way.discard(name)
            AWAITED.pop(name, None)


if hasattr(os, "register_at_fork"):
    # A child would wait forever for a thread that it does not have.
    os.register_at_fork(before=_teaching.acquire, after_in_parent=_teaching.release, after_in_child=_teaching.release)


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
