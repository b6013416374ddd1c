"""The rows of many births at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from ._log import Row

__all__ = ["CLOSINGS", "NUMBER", "SCOPE", "SITE", "WEIGHT", "RowList", "Rows", "joined"]

SITE: Final = 0
NUMBER: Final = 2
CLOSINGS: Final = 3
SCOPE: Final = 5
WEIGHT: Final = 6
"""Columns of a row."""


class Rows(Protocol):
    """Some rows, compiled or not. None stands for a birth that nobody saw."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Row | None: ...

    def __iter__(self) -> Iterator[Row | None]: ...

    def column(self, column: int, places: list[int], /) -> list[Any]:
        """One column of the rows at some places, those left out that nobody saw."""
        ...


class RowList(list["Row | None"]):
    """Rows that Python put together."""

    __slots__ = ()

    def column(self, column: int, places: list[int], /) -> list[Any]:
        """One column of the rows at some places, those left out that nobody saw."""
        return [row[column] for place in places if (row := self[place]) is not None]


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several, one after the other."""
    parts = [part for part in parts if len(part)] or parts[:1]
    whole: Any = parts[0]
    if len(parts) > 1:
        if any(type(part) is RowList for part in parts):
            return RowList(chain.from_iterable(parts))
        for part in parts[1:]:
            whole = whole + part
    rows: Rows = whole
    return rows
