"""The report as tables and as a tree, for a terminal. Needs ``rich``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from ...scopes.out_of_memory import bytes_text
from ...scopes.sites import Site, shown

if TYPE_CHECKING:
    from ..report.leaks import Leak
    from ..report.live import LiveSite
    from ..report.report import Report

__all__ = [
    "can_draw",
    "print_table",
    "print_tree",
]

_PLAIN_WIDTH = 200
"""Columns where there is no terminal: what reads the lines cuts them itself."""


def can_draw() -> bool:
    """Whether ``rich`` is there."""
    return find_spec("rich") is not None


def print_table(report: Report, stream: TextIO) -> None:
    """One row for each leak, worst first."""
    table: Any = import_module("rich.table").Table(title=_title(report), title_justify="left", expand=False)
    for name, justify in (
        ("kind", "left"),
        ("sure", "left"),
        ("bytes", "right"),
        ("count", "right"),
        ("what", "left"),
        ("born at", "left"),
        ("held by", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")
    for leak in report.leaks:
        table.add_row(
            leak.kind,
            leak.sure,
            bytes_text(leak.nbytes),
            f"{leak.count:,}",
            _text(leak.tensor or "-"),
            _text(str(leak.site or "-")),
            _text(leak.holder),
        )
    _console(stream).print(table)


def print_tree(report: Report, stream: TextIO) -> None:
    """What is live by file, function and line, the most bytes first, with the leaks at their lines."""
    tree: Any = import_module("rich.tree").Tree(_text(_title(report)))
    files: dict[str, dict[str, list[LiveSite]]] = {}
    for row in report.sites:
        file = "an unknown place" if row.site is None else shown(row.site.file)
        function = "" if row.site is None else row.site.function
        files.setdefault(file, {}).setdefault(function, []).append(row)
    leaks: dict[Site | None, list[Leak]] = {}
    for leak in report.leaks:
        leaks.setdefault(leak.site, []).append(leak)
    for file, functions in files.items():
        branch = tree.add(_text(f"{_sum(row for rows in functions.values() for row in rows)}  {file}"))
        for function, rows in functions.items():
            twig = branch.add(_text(f"{_sum(rows)}  {function}()")) if function not in ("", "<module>") else branch
            for row in rows:
                line = "" if row.site is None else f"line {row.site.line}: "
                leaf = twig.add(_text(f"{bytes_text(row.nbytes)}  {line}{row.count:,} × {row.kind}"))
                for leak in leaks.pop(row.site, []):
                    leaf.add(_text(f"{leak.kind} ({leak.sure}): {leak.count:,}, held by {leak.holder}"))
    for rest in leaks.values():
        for leak in rest:
            tree.add(_text(f"{leak.kind} ({leak.sure}): {leak.count:,} at {leak.site}, held by {leak.holder}"))
    _console(stream).print(tree)


def _title(report: Report) -> str:
    if not report.leaks:
        return "no leaks"
    leaks = "leak" if report.count == 1 else "leaks"
    return f"{report.count:,} {leaks}, {bytes_text(report.nbytes)} pinned, worst first"


def _sum(rows: Any) -> str:
    return bytes_text(sum(row.nbytes for row in rows))


def _text(text: str) -> Any:
    # Not read for markup: a holder is written with brackets.
    return import_module("rich.text").Text(text)


def _console(stream: TextIO) -> Any:
    width = None if stream.isatty() else _PLAIN_WIDTH
    return import_module("rich.console").Console(file=stream, width=width, highlight=False)
