"""Buffers and plans in files of comma-separated values.

The columns are ``id,lower,upper,size``; a file with a plan also has ``offset``.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from .plan import Plan

__all__ = ["Table", "TableError", "read_table", "write_table"]

_COLUMNS: Final = ("id", "lower", "upper", "size")
_MOST_DIGITS: Final = 1000
"""Longer numbers are not converted: int() refuses more than 4,300 digits with its own error."""
_OPEN_FILES: Final = ("/dev/", "/proc/")
"""Folders whose files are devices or open files: a rename would not write to them."""


class TableError(ValueError):
    """A file is no table of buffers. The message names the line and the reason."""


@final
@dataclass(frozen=True, eq=False)
class Table:
    """The buffers of a file.

    Attributes
    ----------
    ids : sequence of str
        The id of each buffer.
    buffers : array of int64, shape (n, 3)
        Lower, upper and size of each buffer.
    """

    ids: Sequence[str]
    buffers: NDArray[np.int64]


def read_table(path: Path) -> Table:
    """Read the buffers of a file.

    Other columns than ``id,lower,upper,size`` are left out.

    Raises
    ------
    OSError
        The file cannot be read.
    TableError
        A column is missing, a value is no integer of 64 bits, or an id is there twice.
    """
    ids: dict[str, None] = {}
    rows: list[tuple[int, int, int]] = []
    at = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (lines.fieldnames or ())]
            twice = [name for name in _COLUMNS if (lines.fieldnames or ()).count(name) > 1]
            if twice:
                raise TableError(f"{path}: line 1: the column {twice[0]} is there twice")
            if missing:
                raise TableError(f"{path}: line 1: no column {', '.join(missing)}; expected {','.join(_COLUMNS)}")
            for line in lines:
                at = lines.line_num + 1
                where = f"{path}: line {lines.line_num}"
                if None in line:
                    count = len(lines.fieldnames or ())
                    raise TableError(f"{where}: {count + len(line[None])} values, and {count} columns")
                name = line["id"]
                if name in ids:
                    raise TableError(f"{where}: the id {name} is there twice")
                ids[name] = None
                lower, upper, size = (_integer(line[column], column, where) for column in _COLUMNS[1:])
                if upper <= lower or size < 0:
                    wrong = "its size is negative" if size < 0 else "its life ends before or when it begins"
                    raise TableError(f"{where}: buffer {name}: {wrong}")
                rows.append((lower, upper, size))
    except (csv.Error, UnicodeDecodeError) as error:
        raise TableError(f"{path}: line {at}: no comma-separated values: {error}") from None
    return Table(tuple(ids), np.array(rows, np.int64).reshape(-1, 3))


def write_table(path: Path, table: Table, plan: Plan) -> None:
    """Write buffers with the offsets of a plan, so that the file is complete or unchanged.

    A pipe, a terminal, or a file in a folder without write permission is written to directly.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, "offset"))
    for name, buffer, offset in zip(table.ids, table.buffers.tolist(), plan.offsets.tolist(), strict=True):
        writer.writerow((name, *buffer, offset))
    # Links are followed.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".plan.{os.getpid()}.{threading.get_ident()}")
    # A file that is open already, such as the standard output, cannot be replaced.
    is_open = os.path.abspath(path).startswith(_OPEN_FILES) or str(target).startswith(_OPEN_FILES)
    if is_open or (path.exists() and not path.is_file()) or not os.access(target.parent, os.W_OK):
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        return
    try:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def _integer(text: str | None, column: str, where: str) -> int:
    # int() also accepts 1_000, and digits of other scripts.
    if text is None or not re.fullmatch(r"\s*[-+]?[0-9]+\s*", text):
        raise TableError(f"{where}: {column} is an integer, not {text!r}")
    if len(text) > _MOST_DIGITS:
        raise TableError(f"{where}: {column} does not fit into 64 bits")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise TableError(f"{where}: {column} {number} does not fit into 64 bits")
    return number
