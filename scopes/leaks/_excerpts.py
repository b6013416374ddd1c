"""Lines of source around a site."""

from __future__ import annotations

import linecache
from typing import Final

from ._leak import Excerpt
from ._site import Site

__all__ = ["excerpt_of"]

_LINES_AROUND: Final = 2


def excerpt_of(site: Site | None) -> Excerpt | None:
    """The lines around a site, where its source can be read."""
    if site is None or site.line <= 0:
        return None
    lines = linecache.getlines(site.file)
    if site.line > len(lines):
        return None
    first = max(1, site.line - _LINES_AROUND)
    return Excerpt(
        site.file, first, tuple(line.rstrip("\r\n") for line in lines[first - 1 : site.line + _LINES_AROUND]), site.line
    )
