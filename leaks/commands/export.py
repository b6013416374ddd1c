"""``leak-report export``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from ..report.report import Report
from ..reporters.csv_table import csv_of
from ..reporters.html_page import title_of
from ..reporters.memory_viz import memory_viz_of
from ..reporters.perfetto import perfetto_of
from ..reporters.speedscope import speedscope_of
from .arguments import add_output_arguments, add_report_argument, check_output, report_in, write_output

__all__ = [
    "FORMATS",
    "Export",
]


def _speedscope(report: Report) -> str:
    return speedscope_of(report, title_of(report))


FORMATS: Final[dict[str, Callable[[Report], str | bytes]]] = {
    "speedscope": _speedscope,
    "perfetto": perfetto_of,
    "csv": csv_of,
    "memory-viz": memory_viz_of,
}


class Export:
    """Write a report in the format of another program.

    speedscope: live, leaked and peak bytes as flame graphs, for https://www.speedscope.app.
    perfetto: memory, scopes, passes and leaks over time, for https://ui.perfetto.dev and
    chrome://tracing. csv: one row for each leak, for spreadsheets and data frames. memory-viz: what
    is live as a snapshot of PyTorch's allocator, for `python -m torch.cuda._memory_viz` and
    https://pytorch.org/memory_viz.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the report, the format, and the output."""
        add_report_argument(parser)
        parser.add_argument("--format", required=True, choices=FORMATS, help="what to write")
        add_output_arguments(parser, default=None)

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read the report, write the other format, and return the exit status."""
        check_output(options.output, options.force, parser)
        write_output(options.output, FORMATS[options.format](report_in(options.file, parser)), parser)
        return 0
