"""``leak-report show``."""

from __future__ import annotations

import argparse
import sys

from ..report.retainer import text_by_holder
from ..reporters.json_report import json_of
from ..reporters.tables import can_draw, print_report, print_table, print_tree
from .arguments import ALL, add_report_argument, reader_may_leave, report_in

__all__ = [
    "Show",
]


class Show:
    """Print a report that `run` wrote.

    `leak-report FILE` is the same as `leak-report show FILE`. Without an option it prints to stdout
    what `run` printed to stderr. FILE may be - for the standard input.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file, and the ways to show it."""
        add_report_argument(parser)
        parser.add_argument("--all", action="store_true", help=ALL)
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--summary", action="store_true", help="the leaks, each with its lines and holders (default)")
        how.add_argument("--table", action="store_true", help="one row for each leak (needs rich)")
        how.add_argument("--tree", action="store_true", help="what is live by file, function and line (needs rich)")
        how.add_argument(
            "--by",
            choices=("holder", "line"),
            help="one row for each object that retains memory, or for each line (default)",
        )
        how.add_argument("--json", action="store_true", help="the report as JSON")

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read the file, print the report, and return the exit status."""
        if (options.table or options.tree) and not can_draw():
            parser.error("--table and --tree need rich: pip install 'disposescope[report]'")
        report = report_in(options.file, parser)
        with reader_may_leave():
            if options.table:
                print_table(report, sys.stdout)
            elif options.tree:
                print_tree(report, sys.stdout)
            elif options.json:
                print(json_of(report))
            elif options.by == "holder":
                print(text_by_holder(report.retainers))
            else:
                print_report(report, sys.stdout, everything=options.all)
        return 0
