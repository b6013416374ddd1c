"""A snapshot as a table, for a terminal and for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from .._records import Record

__all__ = ["COLUMNS", "cells_of", "html_table"]

COLUMNS: Final = ("kind", "bytes", "state", "scope", "born at")
_ROWS: Final = 100


class _Recorded(Protocol):
    @property
    def records(self) -> Sequence[Record]: ...


def cells_of(record: Record) -> tuple[str, str, str, str, str]:
    """The cells of one row."""
    scope = "-" if record.scope is None else record.scope or "(unnamed)"
    return str(record), f"{record.nbytes:,}", record.state, scope, str(record.site or "-")


def html_table(snapshot: _Recorded) -> str:
    """The table in HTML: the first hundred rows, and how many more there are."""
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    lines = ["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for record in snapshot.records[:_ROWS]:
        kind, nbytes, *rest = (escape(cell) for cell in cells_of(record))
        others = "".join(f"<td>{cell}</td>" for cell in rest)
        lines.append(f'<tr><td>{kind}</td><td style="text-align: right">{nbytes}</td>{others}</tr>')
    lines += ["</tbody>", "</table>"]
    more = len(snapshot.records) - _ROWS
    if more > 0:
        lines.append(f"<p>and {more:,} more</p>")
    return "\n".join(lines)
