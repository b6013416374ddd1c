"""The live view of ``run --live`` while a program runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, final

from ...scopes.base.process import bytes_text
from ...scopes.base.sites import site_of
from ..births.open_scopes import OPENINGS, Opening
from ..detector.recording import Ticker
from ..report.live import LiveSite, live_sites

if TYPE_CHECKING:
    from ..detector.detector import LeakDetector

__all__ = [
    "LiveView",
    "live_view",
    "stack_lines",
]

_ROWS: Final = 12
"""So many lines of the program the table shows."""
_REFRESH_S: Final = 0.5
"""The table is drawn again after so many seconds."""
_LINE_S: Final = 5.0
"""A plain line is printed after so many seconds."""
_STACKS: Final = 4
"""So many stacks of open scopes are shown."""
_DEPTH: Final = 6
"""So many innermost scopes of a stack are shown."""


class LiveView(Protocol):
    """Shows what a detector knows until the view is stopped."""

    def start(self, detector: LeakDetector) -> None:
        """Begin to show the detector."""

    def stop(self) -> None:
        """Stop, and leave the terminal as it was."""


def live_view(stream: TextIO, parser: argparse.ArgumentParser) -> LiveView:
    """Return a table for a terminal, or plain lines for any other stream."""
    if not stream.isatty():
        return Lines(stream)
    if find_spec("rich") is None:
        parser.error("--live on a terminal needs rich: pip install 'disposescope[report]'")
    return LiveTable(stream)


def stack_lines(stacks: Sequence[Sequence[Opening]], now_s: float) -> list[str]:
    """Return a line for each stack of open scopes: each scope's name or line, and its age."""
    lines = [" > ".join(_scope_text(opening, now_s) for opening in stack[-_DEPTH:]) for stack in stacks[:_STACKS]]
    lines = [
        f"in {line}" if len(stack) <= _DEPTH else f"in ... > {line}" for line, stack in zip(lines, stacks, strict=False)
    ]
    if len(stacks) > _STACKS:
        lines.append(f"and in {len(stacks) - _STACKS} more")
    return lines or ["in no scope"]


def _scope_text(opening: Opening, now_s: float) -> str:
    return f"{opening.name or site_of(opening.mark) or 'a scope'} ({now_s - opening.at_s:.1f} s)"


@final
class _CurrentFigures:
    """Returns the current figures of a run when it is called."""

    def __init__(self, detector: LeakDetector) -> None:
        self._detector = detector
        self._began = time.monotonic()
        self._process: Any = import_module("psutil").Process()

    def __call__(self) -> tuple[float, int, tuple[LiveSite, ...]]:
        """Return the seconds since the start, the resident bytes, and the live bytes by line."""
        sites = live_sites(self._detector.take_snapshot().records)
        return time.monotonic() - self._began, int(self._process.memory_info().rss), sites


@final
class Lines:
    """Prints a plain line every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._ticker: Ticker | None = None

    def start(self, detector: LeakDetector) -> None:
        """Begin, with the first line after the first pause."""
        figures = _CurrentFigures(detector)

        def show() -> None:
            seconds, rss, sites = figures()
            count, nbytes = sum(site.count for site in sites), sum(site.nbytes for site in sites)
            most = f", most at {sites[0].site or 'an unknown line'} ({bytes_text(sites[0].nbytes)})" if sites else ""
            print(
                f"leak-report: {seconds:.0f} s, {bytes_text(rss)} resident, "
                f"{bytes_text(nbytes)} in {count:,} live tensors{most}",
                file=self._stream,
                flush=True,
            )

        self._ticker = Ticker(show, _LINE_S)
        self._ticker.start()

    def stop(self) -> None:
        """Print no more lines."""
        if self._ticker is not None:
            self._ticker.stop()


@final
class LiveTable:
    """Draws a table over itself, below the output of the program."""

    def __init__(self, stream: TextIO) -> None:
        self._console: Any = import_module("rich.console").Console(file=stream, stderr=False)
        self._live: Any = None
        self._ticker: Ticker | None = None

    def start(self, detector: LeakDetector) -> None:
        """Begin to draw. Output of the program goes above the table."""
        figures = _CurrentFigures(detector)
        # Output of the program to a terminal goes through rich, so that the table does not hide it.
        # Output to a file is left alone.
        self._live = import_module("rich.live").Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start()

        def show() -> None:
            scopes = stack_lines(OPENINGS.stacks(), time.monotonic())
            drawn = import_module("rich.console").Group(self._drawn(*figures()), *map(self._text, scopes))
            self._live.update(drawn, refresh=True)

        self._ticker = Ticker(show, _REFRESH_S)
        self._ticker.start()

    def stop(self) -> None:
        """Remove the table."""
        if self._ticker is not None:
            self._ticker.stop()
            self._live.stop()

    @staticmethod
    def _text(line: str) -> Any:
        return import_module("rich.text").Text(line, overflow="ellipsis", no_wrap=True)

    def _drawn(self, seconds: float, rss: int, sites: tuple[LiveSite, ...]) -> Any:
        table = import_module("rich.table").Table(
            title=f"{seconds:.0f} s, {bytes_text(rss)} resident, "
            f"{bytes_text(sum(site.nbytes for site in sites))} in {sum(site.count for site in sites):,} live tensors",
            expand=False,
        )
        for name, justify in (("bytes", "right"), ("count", "right"), ("kind", "left"), ("born at", "left")):
            table.add_column(name, justify=justify, overflow="fold")
        for site in sites[:_ROWS]:
            table.add_row(bytes_text(site.nbytes), f"{site.count:,}", site.kind, str(site.site or "an unknown line"))
        if len(sites) > _ROWS:
            table.add_row("", "", "", f"and {len(sites) - _ROWS} more lines")
        return table
