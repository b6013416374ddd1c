"""Hearing of a module of PyTorch's that the program imports later than PyTorch, or never."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

__all__ = ["when_imported"]


def when_imported(name: str, watch: Callable[[Any], object]) -> None:
    """Call `watch` with a module: now where it is there, and otherwise as soon as the program imports it."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        sys.meta_path.insert(0, _Lookout(name, watch))
    else:
        watch(module)


@final
class _Lookout:
    """Finds nothing, but sees the import of the module that it waits for, once."""

    def __init__(self, name: str, watch: Callable[[Any], object]) -> None:
        self._name = name
        self._watch = watch

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the awaited module, with a loader that tells when the module is there."""
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            watch = self._watch

            def exec_module(module: ModuleType) -> None:
                execute(module)
                watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec
