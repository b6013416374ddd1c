"""``leak-report show``."""

from __future__ import annotations

import argparse
import os
import sys

from ..report.report import text_of
from ..reporters.json_report import ReportFileError, json_of, read_report
from ..reporters.tables import can_draw, print_table, print_tree

__all__ = [
    "Show",
]


class Show:
    """Print a report that was written by `run -o`.

    `leak-report FILE` is the same as `leak-report show FILE`. Without an option it prints to stdout
    what `run` printed to stderr. FILE may be - for the standard input.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """One file, and one way to show it."""
        parser.add_argument("file", metavar="FILE", help="a file that `leak-report run -o FILE` wrote")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--summary", action="store_true", help="the leaks, each with its lines and holders (default)")
        how.add_argument("--table", action="store_true", help="one row for each leak (needs rich)")
        how.add_argument("--tree", action="store_true", help="what is live by file, function and line (needs rich)")
        how.add_argument("--json", action="store_true", help="the report as JSON")

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read the file, print the report."""
        if (options.table or options.tree) and not can_draw():
            parser.error("--table and --tree need rich: pip install 'disposescope[report]'")
        try:
            report = read_report(options.file)
        except ReportFileError as error:
            parser.error(str(error))
        try:
            if options.table:
                print_table(report, sys.stdout)
            elif options.tree:
                print_tree(report, sys.stdout)
            else:
                print(json_of(report) if options.json else text_of(report))
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read it has seen enough. The interpreter flushes once more at its end: into
            # nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
