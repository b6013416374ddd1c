"""``leak-report attach``."""

from __future__ import annotations

import argparse

from ..report.report import text_of
from ..running.session import AttachError, ask
from ..saved.files import write_report
from .arguments import report_output, seconds_of_text
from .check import printed

__all__ = [
    "Attach",
]


class Attach:
    """Ask a running program for its report.

    The program must be watched: started with `leak-report run`, or with PYTHONDISPOSESCOPE=leaks in
    its environment. It goes on meanwhile. Any other process is left alone.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the process id and the output."""
        parser.add_argument("pid", metavar="PID", type=int, help="the number of the process, or of a worker of it")
        parser.add_argument("-o", "--output", metavar="FILE", help="write the report to FILE instead of printing it")
        parser.add_argument("--force", action="store_true", help="overwrite FILE, also if it is no report")
        parser.add_argument(
            "--timeout", metavar="SECONDS", type=seconds_of_text, default=30.0, help="how long to wait (30)"
        )

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Ask the process, print the answer, and return the exit status."""
        output = report_output(options.output, options.force, parser)
        try:
            report = ask(options.pid, options.timeout)
        except AttachError as error:
            parser.error(str(error))
        if output is None:
            return printed(text_of(report), 0)
        write_report(report, output)
        return 0
