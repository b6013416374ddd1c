"""``leak-report diff``."""

from __future__ import annotations

import argparse

from ..report.difference import difference_of
from ..reporters.difference_text import difference_json_of, difference_text_of
from .arguments import report_in, write_output
from .run import UNDECIDED

__all__ = [
    "Diff",
]


class Diff:
    """Compare two reports: which leaks are new, gone, grown and shrunk.

    Leaks are matched by their fingerprint, which stays the same in another run, in another folder,
    and when lines are added above. For a gate that fails, see `check --baseline`. Exits with 4
    where not everything could be judged in one of the two, so that what is gone may be there.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the two reports."""
        parser.add_argument("old", metavar="OLD", help="the report of the run before")
        parser.add_argument(
            "new", metavar="NEW", help="the report of the run after; one of the two may be - for standard input"
        )
        parser.add_argument(
            "--json", action="store_true", help="print JSON: arrays of changes, each with its whole leak"
        )

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read both reports, print the difference, and return the exit status."""
        if options.old == options.new == "-":
            parser.error("only one of the two can be standard input")
        difference = difference_of(report_in(options.old, parser), report_in(options.new, parser))
        text = difference_json_of(difference) if options.json else difference_text_of(difference)
        write_output("-", f"{text}\n", parser)
        return UNDECIDED if difference.undecided else 0
