"""Reading the reports that a verb is given."""

from __future__ import annotations

import argparse

from .._report import Report
from ..reporters._files import read_report
from ..reporters._json import ReportFileError

__all__ = ["report_in"]


def report_in(file: str, parser: argparse.ArgumentParser) -> Report:
    """The report in a file, or on the standard input for ``"-"``; what cannot be read ends the program in one line."""
    try:
        return read_report(file)
    except ReportFileError as error:
        parser.error(str(error))
