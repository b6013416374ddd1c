"""The settings of a project: options of the command line, and suppressions.

They are in ``.leak-report.toml``, or in a table of ``pyproject.toml``.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast, final, get_args

from ...scopes.base.sites import shown
from ..report.leaks import Leak, LeakKind
from ..report.report import Report, Suppressed, UnusedSuppression

__all__ = [
    "FILE",
    "Suppression",
    "SettingsError",
    "find_settings",
    "options_of",
    "read_table",
    "rows_of",
    "suppressed_by",
    "suppressions_of",
]

# The file of a project's settings: ``.leak-report.toml``, or a table of ``pyproject.toml``.


FILE: Final = ".leak-report.toml"
"""The file of the settings; ``pyproject.toml`` may have them in its table ``tool.leak-report``."""


_TABLES: Final = ("suppress", "baseline")
"""Entries of the file that are no options of the command line."""


class SettingsError(ValueError):
    """Raised if a file of settings is wrong; the message says where and how, in one line."""


def find_settings(folder: Path) -> Path | None:
    """Return the file with the settings of a folder: `FILE`, or a ``pyproject.toml``."""
    own = folder / FILE
    if own.is_file():
        return own
    project = folder / "pyproject.toml"
    try:
        found = project.is_file() and bool(read_table(project))
    except SettingsError:
        # A broken pyproject.toml is reported by other tools.
        return None
    return project if found else None


def read_table(file: Path) -> dict[str, Any]:
    """Return the content of a file; for ``pyproject.toml``, its table ``tool.leak-report``.

    Raises
    ------
    SettingsError
        The file cannot be read, or is no TOML.
    """
    try:
        with file.open("rb") as stream:
            content: dict[str, Any] = tomllib.load(stream)
    except OSError as error:
        raise SettingsError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(file)!r} is no TOML: {error}") from None
    if file.name == "pyproject.toml":
        tools: Any = content.get("tool", {})
        content = tools.get("leak-report", {})
    return content


def rows_of(
    file: Path, content: dict[str, Any], name: str, noun: str, keys: Collection[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each table ``[[name]]`` of a file's content, with the text of its place for messages.

    Raises
    ------
    SettingsError
        An entry is no table, or has a key that is not among `keys`.
    """
    rows: list[Any] = content.get(name, [])
    if type(rows) is not list:
        raise SettingsError(f"{str(file)!r}: write each {noun} as a table [[{name}]]")
    for number, row in enumerate(rows, 1):
        where = f"{str(file)!r}, {noun} {number}"
        if not isinstance(row, dict):
            raise SettingsError(f"{where}: it must be a table")
        fields = cast("dict[str, Any]", row)
        for unknown in sorted(fields.keys() - set(keys)):
            raise SettingsError(f"{where}: unknown key {unknown!r}; known are {', '.join(keys)}")
        yield where, fields


# Options of the command line.


def options_of(file: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the options of the command line that a file sets, by their long names.

    Parameters
    ----------
    file : Path
        The file of settings.
    known : collection of str
        The long names of all options, without the dashes.

    Raises
    ------
    SettingsError
        The file cannot be read, or has an entry of another name.
    """
    options = {name: value for name, value in read_table(file).items() if name not in _TABLES}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, {*known, *_TABLES}, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted({*known, *_TABLES}))}"
            if name == "tool":
                hint = "the header [tool.leak-report] is for pyproject.toml: leave it out here"
            raise SettingsError(f"{str(file)!r} has an unknown entry {name!r}; {hint}")
    return options


# Suppressions, each with its reason, in ``.leak-report.toml`` or ``pyproject.toml``.


_KINDS: Final = frozenset(cast("tuple[str, ...]", get_args(LeakKind)))
_CRITERIA: Final = ("kind", "site", "function", "tensor")
"""The fields of a suppression that say what it matches."""


@final
@dataclass(frozen=True, slots=True)
class Suppression:
    """Leaks that are not to be reported. A field that is left out matches everything.

    Attributes
    ----------
    file : str
        The file with the suppression.
    index : int
        Its position among the suppressions of the file, from 0.
    reason : str
        Why these leaks are not reported.
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
        """Return whether the suppression matches a leak."""
        if self.kind and leak.kind not in self.kind and leak.unjudged not in self.kind:
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
    """Return the suppressions in a file: its tables ``[[suppress]]``.

    Raises
    ------
    SettingsError
        The file cannot be read, or a suppression is wrong: it has an unknown key, no reason,
        nothing that it matches by, or an unknown kind of leak.
    """
    rows = rows_of(file, read_table(file), "suppress", "suppression", ("reason", *_CRITERIA))
    return tuple(_suppression(str(file), index, where, fields) for index, (where, fields) in enumerate(rows))


def _suppression(file: str, index: int, where: str, fields: dict[str, Any]) -> Suppression:
    reason: Any = fields.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise SettingsError(f"{where}: it needs a reason")
    patterns = {name: _patterns(where, name, fields[name]) for name in _CRITERIA if name in fields}
    if not patterns:
        raise SettingsError(f"{where}: say what it is about, with at least one of {', '.join(_CRITERIA)}")
    for kind in patterns.get("kind", ()):
        if kind not in _KINDS:
            raise SettingsError(f"{where}: unknown kind of leak {kind!r}; known are {', '.join(sorted(_KINDS))}")
    return Suppression(file, index, reason.strip(), **patterns)


def _patterns(where: str, name: str, given: Any) -> tuple[str, ...]:
    patterns: list[Any] = [given] if type(given) is str else given
    if type(patterns) is not list or not patterns or not all(type(pattern) is str and pattern for pattern in patterns):
        raise SettingsError(f"{where}: {name} must be a string or a list of strings, not {given!r}")
    return tuple(patterns)


def suppressed_by(report: Report, suppressions: Iterable[Suppression]) -> Report:
    """Return the report with its suppressed leaks and unused suppressions listed apart."""
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
    kept: list[Leak] = []
    for leak in report.kept:
        # Kept lines that could not be judged can be suppressed as well.
        matching = [row for row in rows if row.matches(leak)] if leak.unjudged is not None else []
        used.update(matching)
        if matching:
            suppressed.append(Suppressed(leak, matching[0].reason))
        else:
            kept.append(leak)
    unused = [UnusedSuppression(row.file, row.index, row.reason) for row in rows if row not in used]
    gone = sum(leak.nbytes for leak in report.leaks) - sum(leak.nbytes for leak in leaks)
    return replace(
        report,
        leaks=tuple(leaks),
        kept=tuple(kept),
        kept_nbytes=max(
            0, report.kept_nbytes - sum(leak.nbytes for leak in report.kept) + sum(leak.nbytes for leak in kept)
        ),
        count=sum(leak.count for leak in leaks),
        nbytes=max(0, report.nbytes - gone),
        suppressed=tuple(suppressed),
        unused_suppressions=(*report.unused_suppressions, *unused),
    )
