"""``leak-report show``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..reporters._json import ReportFileError, report_from_json
from ..reporters._text import text_of

__all__ = ["Show"]


class Show:
    """Print a report that was written by `run -o`.

    Prints to stdout what `run` printed to stderr.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """One file."""
        parser.add_argument("file", metavar="FILE", help="the file that `leak-report run -o FILE` wrote")

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read the file, print the report."""
        try:
            report = report_from_json(Path(options.file).read_text(encoding="utf-8"))
        except OSError as error:
            parser.error(f"cannot read {options.file!r}: {error.strerror}")
        except UnicodeDecodeError:
            parser.error(f"{options.file!r} is no leak report")
        except ReportFileError as error:
            parser.error(f"{options.file!r} {error}")
        try:
            print(text_of(report), flush=True)
        except BrokenPipeError:
            # Whoever read it has seen enough. The interpreter flushes once more at its end: into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
