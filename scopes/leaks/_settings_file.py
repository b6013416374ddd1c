"""The file of a project's settings: ``.leak-report.toml``, or a table of ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, cast

__all__ = ["FILE", "SuppressionError", "find_settings", "read_table", "rows_of"]

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
