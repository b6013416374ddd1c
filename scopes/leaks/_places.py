"""Whether a site is at a place that somebody names: a file and perhaps a line, or a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase

from ._edges import is_module, namespace_of
from ._site import Site, shown

__all__ = ["files_of", "is_at"]


def is_at(site: Site | None, pattern: str) -> bool:
    """Whether a site is where a pattern says: ``file`` or ``file:line``, by any part of the path from its end."""
    if site is None:
        return False
    names = {site.file, shown(site.file), os.path.basename(site.file)}
    return any(fnmatchcase(name, pattern) or fnmatchcase(f"{name}:{site.line}", pattern) for name in names)


def files_of(module: str) -> Callable[[str], bool]:
    """What tells whether a file is of a module, or of a package and what is below it.

    Raises
    ------
    ValueError
        No such module has been imported, or it has no file.
    """
    found = sys.modules.get(module)
    namespace = namespace_of(found) if found is not None and is_module(found) else {}
    file = namespace.get("__file__")
    if type(file) is not str:
        raise ValueError(f"no module {module!r} with a file has been imported")
    path = os.path.abspath(file)
    if "__path__" not in namespace:
        return lambda other: os.path.abspath(other) == path
    folder = os.path.join(os.path.dirname(path), "")
    return lambda other: os.path.abspath(other).startswith(folder)
