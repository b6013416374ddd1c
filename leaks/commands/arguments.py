"""What the commands share: numbers on the command line, reading reports, and writing without overwriting."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from ...scopes.options import parse_budget
from ...scopes.out_of_memory import bytes_text
from ..report.report import Report
from ..reporters.json_report import ReportFileError, read_report

__all__ = [
    "add_output_arguments",
    "check_output",
    "growth_of_text",
    "nbytes_of_text",
    "report_in",
    "seconds_of_text",
    "write_output",
]

# Numbers on the command line: bytes, bytes per pass, seconds.


def nbytes_of_text(text: str) -> int:
    """Bytes, or a number with a unit: ``"512KiB"``."""
    try:
        return parse_budget(int(text) if text.isdecimal() else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 4096, 512KiB or 1.5MB") from None


def growth_of_text(text: str) -> int:
    """Bytes per pass: ``"1MiB/pass"``; 0 is none at all."""
    number = text.removesuffix("/pass")
    if number.strip() == "0":
        return 0
    try:
        return nbytes_of_text(number)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no growth, such as 1MiB/pass or 0/pass") from None


def seconds_of_text(text: str) -> float:
    """A positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


# Reading the reports that a verb is given.


def report_in(file: str, parser: argparse.ArgumentParser) -> Report:
    """The report in a file, or on the standard input for ``"-"``; what cannot be read ends the program in one line."""
    try:
        return read_report(file)
    except ReportFileError as error:
        parser.error(str(error))


# Writing what a verb makes: never over a file that is there, unless that was asked for.


def add_output_arguments(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """``-o`` and ``--force``; without a default ``-o`` must be given."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=default is None,
        help="the file to write, - for standard output" + ("" if default is None else f" (default: {default})"),
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT where it exists")


def check_output(output: str, force: bool, parser: argparse.ArgumentParser) -> None:
    """End the program where a file could not, or may not, be written: before the work is done."""
    if output == "-":
        return
    path = Path(output)
    if path.is_dir():
        parser.error(f"cannot write {output!r}: it is a folder")
    if not path.parent.is_dir():
        parser.error(f"cannot write {output!r}: its folder does not exist")
    if path.is_file() and not force:
        parser.error(f"{output!r} exists already; --force overwrites it")


def write_output(output: str, content: str | bytes, parser: argparse.ArgumentParser) -> None:
    """Write a file as a whole or not at all; standard output for ``"-"``, and pipes, are written to as they are."""
    if isinstance(content, str):
        # Bytes of a path that are no text have no other way into a file of text.
        content = content.encode("utf-8", "backslashreplace")
    try:
        if output == "-":
            _to_standard_output(content)
            return
        path = Path(output)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        _replace(path, content)
    except OSError as error:
        parser.error(f"cannot write {output!r}: {error.strerror}")
    print(f"leak-report: wrote {output} ({bytes_text(len(content))})", file=sys.stderr)


def _to_standard_output(content: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        # The interpreter flushes once more at its end: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Whoever closes a pipe has seen enough.
        if not isinstance(error, BrokenPipeError):
            raise


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
