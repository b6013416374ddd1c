"""What the verbs share: parsing numbers, reading reports, writing files without overwriting."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from ...scopes.base.files import write_whole
from ...scopes.base.process import bytes_text, parse_budget
from ..report.report import Report
from ..reporters.json_report import ReportFileError, is_report, read_report

__all__ = [
    "ALL",
    "REPORT",
    "actions_of",
    "add_output_arguments",
    "add_report_argument",
    "check_output",
    "count_of_text",
    "growth_of_text",
    "nbytes_of_text",
    "near_to",
    "option_names_of",
    "reader_may_leave",
    "report_in",
    "report_output",
    "seconds_of_text",
    "write_output",
]

# Numbers on the command line: bytes, bytes per pass, seconds.


def nbytes_of_text(text: str) -> int:
    """Return the bytes that a text gives as a number, with or without a unit: ``"512KiB"``."""
    try:
        return parse_budget(int(text) if text.isdecimal() else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 4096, 512KiB or 1.5MB") from None


def growth_of_text(text: str) -> int:
    """Return the bytes per pass that a text gives: ``"1MiB/pass"``; 0 tolerates no growth."""
    number = text.removesuffix("/pass")
    if number.strip() == "0":
        return 0
    try:
        return nbytes_of_text(number)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no growth, such as 1MiB/pass or 0/pass") from None


def seconds_of_text(text: str) -> float:
    """Return the positive number of seconds that a text gives."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def count_of_text(text: str) -> int:
    """Return the positive number of a text, with or without separators: ``"20_000_000"``."""
    digits = text.replace("_", "").replace(",", "")
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of objects, such as 20_000_000")
    return int(digits)


# The options of a parser, and what was perhaps meant.


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the actions of a parser, of which argparse has no public list."""
    return cast("Any", parser)._actions  # type: ignore[no-any-return]  # untyped: private


def option_names_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that the help of a parser names, such as ``-o`` and ``--output``."""
    return [name for action in actions_of(parser) if action.help != argparse.SUPPRESS for name in action.option_strings]


def near_to(word: str, known: Iterable[str]) -> str:
    """Return a question whether a similar word was meant; ``""`` if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


# Read the reports that a verb is given.


ALL: Final = "list all that is held, also less than 1 kB and more than ten rows"
"""The help of ``--all``."""

REPORT: Final = "leak-report.json"
"""The file in which `run` keeps its report without ``-o``; other verbs read it by default."""


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Add the file with a report; by default it is the one that `run` keeps without ``-o``."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=REPORT,
        help=f"a report that `leak-report run` wrote, - for standard input (default: {REPORT})",
    )


def report_in(file: str, parser: argparse.ArgumentParser) -> Report:
    """Return the report in a file, or on the standard input for ``"-"``.

    A file that cannot be read ends the program with one line.
    """
    if file == REPORT and not os.path.exists(file):
        parser.error(f"there is no {REPORT} in this folder: leak-report run PROGRAM makes one, or name a FILE")
    try:
        return read_report(file)
    except ReportFileError as error:
        parser.error(str(error))


# Write the output of a verb. A file that is something else is overwritten only on request.


def add_output_arguments(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Add ``-o`` and ``--force``; without a default, ``-o`` is required."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=default is None,
        help="the file to write, - for standard output" + ("" if default is None else f" (default: {default})"),
    )
    anew = "overwrite OUT where it exists" if default is None else "overwrite OUT, also if it is something else"
    parser.add_argument("--force", action="store_true", help=anew)


def check_output(
    output: str, force: bool, parser: argparse.ArgumentParser, own: tuple[str, Callable[[Path], bool]] | None = None
) -> None:
    """End the program if a file cannot, or may not, be written, before any work is done.

    Parameters
    ----------
    output : str
        The file, or ``"-"``.
    force : bool
        Whether it may be overwritten, whatever it is.
    parser : argparse.ArgumentParser
        The parser, whose ``error`` ends the program.
    own : tuple of (str, callable), optional
        The noun for what the verb writes, and a function that tells whether a file is such a one:
        then it may be overwritten.
    """
    if output == "-":
        return
    path = Path(output)
    if path.is_dir():
        parser.error(f"cannot write {output!r}: it is a folder")
    if not path.parent.is_dir():
        parser.error(f"cannot write {output!r}: its folder does not exist")
    if path.is_file() and not force and not (own is not None and own[1](path)):
        what = "" if own is None else f", and is no {own[0]} of leak-report"
        parser.error(f"{output!r} exists already{what}; --force overwrites it")


def report_output(name: str | None, force: bool, parser: argparse.ArgumentParser) -> Path | None:
    """Return the absolute path of a report's file, or None where no name is given.

    Absolute, because the program may change the working directory. A path that cannot, or may not,
    be written ends the program: see `check_output`.
    """
    if name is None:
        return None
    check_output(name, force, parser, ("report", is_report))
    return Path(os.path.abspath(name))


def write_output(output: str, content: str | bytes, parser: argparse.ArgumentParser) -> None:
    """Write a file as a whole or not at all.

    The standard output (``"-"``) and pipes are written to directly.
    """
    if isinstance(content, str):
        # A path may have bytes that are no text, which UTF-8 cannot encode.
        content = content.encode("utf-8", "backslashreplace")
    try:
        if output == "-":
            with reader_may_leave():
                sys.stdout.flush()
                sys.stdout.buffer.write(content)
            return
        path = Path(output)
        write_whole(path, content)
        if path.exists() and not path.is_file():
            return
    except OSError as error:
        parser.error(f"cannot write {output!r}: {error.strerror}")
    print(f"leak-report: wrote {output} ({bytes_text(len(content))})", file=sys.stderr)


@contextmanager
def reader_may_leave(program: str = "leak-report") -> Generator[None]:
    """Let a block print to the standard output; a reader that closes the pipe early is no error.

    Other errors end the program with one line and status 2.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes the standard output again when it shuts down: send that to the
        # null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"{program}: error: cannot write '-': {error.strerror}", file=sys.stderr)
            sys.exit(2)
