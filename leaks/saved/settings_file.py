"""The settings of a project: ``.leak-report.toml`` or a table of ``pyproject.toml``, with its suppressions."""

from __future__ import annotations

import fnmatch
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast, final, get_args

from ...scopes.sites import shown
from ..report.leaks import Leak, LeakKind
from ..report.report import Report, Suppressed, UnusedSuppression

__all__ = [
    "FILE",
    "Suppression",
    "SuppressionError",
    "find_settings",
    "read_table",
    "rows_of",
    "suppressed_by",
    "suppressions_of",
]

# The file of a project's settings: ``.leak-report.toml``, or a table of ``pyproject.toml``.


FILE: Final = ".leak-report.toml"
"""The file of a project's own; ``pyproject.toml`` may have the same in its table ``tool.leak-report``."""


class SuppressionError(ValueError):
    """A file of suppressions is wrong; the message says where and how, in one line."""


def find_settings(folder: Path) -> Path | None:
    """The file in a folder that has a project's suppressions: `FILE`, or a ``pyproject.toml`` with the table."""
    own = folder / FILE
    if own.is_file():
        return own
    project = folder / "pyproject.toml"
    try:
        found = project.is_file() and bool(read_table(project))
    except SuppressionError:
        # A pyproject.toml that others cannot read either is no business of ours.
        return None
    return project if found else None


def read_table(file: Path) -> dict[str, Any]:
    """The content of a file; of a ``pyproject.toml``, its table ``tool.leak-report``.

    Raises
    ------
    SuppressionError
        It cannot be read, or is no TOML.
    """
    try:
        with file.open("rb") as stream:
            content: dict[str, Any] = tomllib.load(stream)
    except OSError as error:
        raise SuppressionError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuppressionError(f"{str(file)!r} is no TOML: {error}") from None
    if file.name == "pyproject.toml":
        tools: Any = content.get("tool", {})
        content = tools.get("leak-report", {})
    return content


def rows_of(
    file: Path, content: dict[str, Any], name: str, noun: str, keys: Collection[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each table ``[[name]]`` of a file's content, with where it stands, for messages.

    Raises
    ------
    SuppressionError
        They are no tables, or one has another key than `keys`.
    """
    rows: list[Any] = content.get(name, [])
    if type(rows) is not list:
        raise SuppressionError(f"{str(file)!r}: write each {noun} as a table [[{name}]]")
    for number, row in enumerate(rows, 1):
        where = f"{str(file)!r}, {noun} {number}"
        if not isinstance(row, dict):
            raise SuppressionError(f"{where}: it must be a table")
        fields = cast("dict[str, Any]", row)
        for unknown in sorted(fields.keys() - set(keys)):
            raise SuppressionError(f"{where}: unknown key {unknown!r}; known are {', '.join(keys)}")
        yield where, fields


# What the user does not want to hear of, and why: suppressions in ``.leak-report.toml`` or
# ``pyproject.toml``.


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
        Patterns for the file, or for the file and line: ``"*/cache.py"``, ``"src/cache.py:31"``.
        Relative paths are compared with paths relative to the working directory.
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
        The file or a suppression is wrong: an unknown key, no reason, nothing to go by, an unknown
        kind of leak.
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
