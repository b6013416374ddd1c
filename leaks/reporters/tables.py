"""Print a report as text, as a table or as a tree.

``rich`` prints text on a terminal, if it is installed. Tables and trees need it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import Site, shown
from ..report.report import headline_of, size_of, text_of

if TYPE_CHECKING:
    from ..report.leaks import Leak
    from ..report.live import LiveSite
    from ..report.report import Report

__all__ = [
    "can_draw",
    "print_report",
    "print_table",
    "print_tree",
]

_PLAIN_WIDTH = 200
"""The width of tables and trees in columns where there is no terminal."""


def can_draw() -> bool:
    """Return whether ``rich`` is installed."""
    return find_spec("rich") is not None


_STYLES = {"do: ": "green", "held by ": "cyan", "kept by ": "cyan", "undecided": "yellow"}
"""The styles of lines, by how they begin."""


def print_report(report: Report, stream: TextIO, *, prefix: str = "", everything: bool = False) -> None:
    """Print a report as text, with colours and within its width on a terminal if there is ``rich``.

    Parameters
    ----------
    report : Report
        The report.
    stream : text stream
        The stream to print to.
    prefix : str, default ""
        A text before the first line.
    everything : bool, default False
        See `text_of`.
    """
    text = f"{prefix}{text_of(report, everything=everything)}"
    if not (stream.isatty() and can_draw()):
        print(text, file=stream, flush=True)
        return
    console = _console(stream)
    padding: Any = import_module("rich.padding").Padding
    for line in text.split("\n"):
        words = line.lstrip()
        style = next((style for start, style in _STYLES.items() if words.startswith(start)), "")
        if not line.startswith(" ") or words[:1].isdecimal():
            style = style or "bold"
        # The padding keeps the indent of a line where it is wrapped.
        console.print(padding(_text(words, style), (0, 0, 0, len(line) - len(words))))


def print_table(report: Report, stream: TextIO) -> None:
    """Print one row for each leak, worst first."""
    table: Any = import_module("rich.table").Table(title=headline_of(report), title_justify="left", expand=False)
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
            size_of(leak),
            f"{leak.count:,}",
            _text(leak.tensor or "-"),
            _text(str(leak.site or "-")),
            _text(leak.holder),
        )
    _console(stream).print(table)


def print_tree(report: Report, stream: TextIO) -> None:
    """Print live resources by file, function and line, the most bytes first, with the leaks."""
    tree: Any = import_module("rich.tree").Tree(_text(headline_of(report)))
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
    # Leaks of lines that have no live resources.
    for rows_without_site in leaks.values():
        for leak in rows_without_site:
            tree.add(_text(f"{leak.kind} ({leak.sure}): {leak.count:,} at {leak.site}, held by {leak.holder}"))
    _console(stream).print(tree)


def _sum(rows: Any) -> str:
    return bytes_text(sum(row.nbytes for row in rows))


def _text(text: str, style: str = "") -> Any:
    # Do not parse markup, because a holder is written with brackets.
    return import_module("rich.text").Text(text, style=style)


def _console(stream: TextIO) -> Any:
    width = None if stream.isatty() else _PLAIN_WIDTH
    return import_module("rich.console").Console(file=stream, width=width, highlight=False)
