"""``leak-report merge``."""

from __future__ import annotations

import argparse

from ..reporters.json_report import json_of
from ..saved.files import merged
from .arguments import add_output_arguments, check_output, report_in, write_output

__all__ = [
    "Merge",
]


class Merge:
    """Write the reports of several processes, such as ranks or workers of xdist, as one.

    The program and the settings are those of the first FILE; leaks, sites, processes and time lines
    are those of all, in seconds since the start of the first. What is given twice counts once.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the reports and the output."""
        parser.add_argument(
            "files", metavar="FILE", nargs="+", help="a file that `leak-report run -o FILE` wrote, - for standard input"
        )
        add_output_arguments(parser, default=None)

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read all reports, write one, and return the exit status."""
        files: list[str] = options.files
        if files.count("-") > 1:
            parser.error("only one FILE can be standard input")
        check_output(options.output, options.force, parser)
        report = merged([report_in(file, parser) for file in files])
        write_output(options.output, f"{json_of(report)}\n", parser)
        return 0
