"""What the user does not want to hear of, and why: suppressions in ``.leak-report.toml`` or ``pyproject.toml``."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast, final, get_args

from ._leak import Leak, LeakKind
from ._report import Report, Suppressed, UnusedSuppression
from ._settings_file import SuppressionError, read_table, rows_of
from ._site import shown

__all__ = ["Suppression", "suppressed_by", "suppressions_of"]

_KINDS: Final = frozenset(cast("tuple[str, ...]", get_args(LeakKind)))
_CRITERIA: Final = ("kind", "site", "function", "tensor")


@final
@dataclass(frozen=True, slots=True)
class Suppression:
    """Leaks that are not to be reported. What is left out matches everything.

    Attributes
    ----------
    file : str
        The file that it stands in.
    index : int
        Its place among the suppressions of the file, from 0.
    reason : str
        Why.
    kind : tuple of str
        Kinds of leak.
    site : tuple of str
        Patterns for the file, or for the file and line: ``"*/cache.py"``, ``"src/cache.py:31"``. Relative paths are
        compared with paths relative to the working directory.
    function : tuple of str
        Patterns for the function that made the tensors: ``"Model.*"``.
    tensor : tuple of str
        Patterns for the kind of tensor: ``"torch.*"``.
    """

    file: str
    index: int
    reason: str
    kind: tuple[str, ...] = ()
    site: tuple[str, ...] = ()
    function: tuple[str, ...] = ()
    tensor: tuple[str, ...] = ()

    def matches(self, leak: Leak) -> bool:
        """Whether a leak is meant."""
        if self.kind and leak.kind not in self.kind:
            return False
        if self.tensor and not _any_matches(self.tensor, [leak.tensor_kind or ""]):
            return False
        if not self.site and not self.function:
            return True
        site = leak.site
        if site is None:
            return False
        if self.function and not _any_matches(self.function, [site.function]):
            return False
        relative = shown(site.file)
        files = [site.file, relative, f"{site.file}:{site.line}", f"{relative}:{site.line}"]
        return not self.site or _any_matches(self.site, [name.replace(os.sep, "/") for name in files])


def _any_matches(patterns: Iterable[str], names: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def suppressions_of(file: Path) -> tuple[Suppression, ...]:
    """The suppressions in a file: its tables ``[[suppress]]``.

    Raises
    ------
    SuppressionError
        The file or a suppression is wrong: an unknown key, no reason, nothing to go by, an unknown kind of leak.
    """
    content = read_table(file)
    unknown = sorted(content.keys() - {"suppress", "baseline"})
    if unknown:
        raise SuppressionError(f"{str(file)!r} has an unknown entry {unknown[0]!r}; known are suppress and baseline")
    rows = rows_of(file, content, "suppress", "suppression", ("reason", *_CRITERIA))
    return tuple(_suppression(str(file), index, where, fields) for index, (where, fields) in enumerate(rows))


def _suppression(file: str, index: int, where: str, fields: dict[str, Any]) -> Suppression:
    reason: Any = fields.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise SuppressionError(f"{where}: it needs a reason")
    patterns = {name: _patterns(where, name, fields[name]) for name in _CRITERIA if name in fields}
    if not patterns:
        raise SuppressionError(f"{where}: say what it is about, with at least one of {', '.join(_CRITERIA)}")
    for kind in patterns.get("kind", ()):
        if kind not in _KINDS:
            raise SuppressionError(f"{where}: unknown kind of leak {kind!r}; known are {', '.join(sorted(_KINDS))}")
    return Suppression(file, index, reason.strip(), **patterns)


def _patterns(where: str, name: str, given: Any) -> tuple[str, ...]:
    patterns: list[Any] = [given] if type(given) is str else given
    if type(patterns) is not list or not patterns or not all(type(pattern) is str and pattern for pattern in patterns):
        raise SuppressionError(f"{where}: {name} must be a string or a list of strings, not {given!r}")
    return tuple(patterns)


def suppressed_by(report: Report, suppressions: Iterable[Suppression]) -> Report:
    """The report without the leaks that are suppressed; it tells them apart, and which suppressions none needed."""
    rows = list(suppressions)
    if not rows:
        return report
    leaks: list[Leak] = []
    suppressed = list(report.suppressed)
    used: set[Suppression] = set()
    for leak in report.leaks:
        matching = [row for row in rows if row.matches(leak)]
        used.update(matching)
        if matching:
            suppressed.append(Suppressed(leak, matching[0].reason))
        else:
            leaks.append(leak)
    unused = [UnusedSuppression(row.file, row.index, row.reason) for row in rows if row not in used]
    gone = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    return replace(
        report,
        leaks=tuple(leaks),
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, report.nbytes - gone),
        suppressed=tuple(suppressed),
        unused_suppressions=(*report.unused_suppressions, *unused),
    )
