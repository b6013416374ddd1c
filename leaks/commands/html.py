"""``leak-report html``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..reporters.html_page import html_of, is_page
from .arguments import add_output_arguments, add_report_argument, check_output, report_in, write_output

__all__ = [
    "Html",
]


class Html:
    """Write a report as one HTML file.

    The file holds all that it needs and opens offline in any browser of the last years: a time line
    of memory, scopes and passes, the leaks with their source and what holds them, searched and
    filtered, and what is live by line.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the report and the output."""
        add_report_argument(parser)
        add_output_arguments(parser, default="FILE with the ending .html")
        parser.add_argument("--title", metavar="TEXT", help="the heading (default: the program's command line)")

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read the report, write the page, and return the exit status."""
        file: str = options.file
        default = "-" if file == "-" else str(Path(file).with_suffix(".html"))
        output: str = default if options.output is None else options.output
        check_output(output, options.force, parser, ("page", is_page))
        write_output(output, html_of(report_in(file, parser), options.title), parser)
        return 0
