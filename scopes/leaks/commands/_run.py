"""``leak-report run``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from .._detector import LeakDetector
from .._facts import Ending
from .._program import ProgramNotFoundError, exit_as, prepare_module, prepare_script, run_program
from ..reporters._json import json_of

__all__ = ["Run"]

LEAKED: Final = 3
"""The exit status with ``--fail-on-leak`` where the program itself succeeded."""


class Run:
    """Run a program and report what it leaked.

    Runs a Python program unchanged under the leak detector. When it ends, also by an exception, what is still alive and
    what was disposed under a live reference is printed to stderr, worst first, with the line that made it and what
    holds it. The program's output, arguments and exit status are its own.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options come before the program; all that follows it is the program's."""
        parser.usage = "leak-report run [-h] [-o FILE] [--fail-on-leak] (SCRIPT | -m MODULE) [ARGS ...]"
        parser.add_argument("-o", "--output", metavar="FILE", help="also write the report to FILE, as JSON for `show`")
        parser.add_argument(
            "--fail-on-leak", action="store_true", help=f"exit with {LEAKED} where the program succeeded and leaked"
        )
        parser.add_argument(
            "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module, as `python -m` does"
        )
        parser.add_argument(
            "program",
            metavar="SCRIPT",
            nargs=argparse.REMAINDER,
            help="run a file, as `python` does, with its arguments",
        )

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Run the program, print the report."""
        words: list[str] = options.program if options.module is None else options.module
        if words[:1] == ["--"]:
            words = words[1:]
        if not words:
            parser.error("name a program: a SCRIPT, or -m MODULE")
        output = None if options.output is None else Path(os.path.abspath(options.output))
        if output is not None and (output.is_dir() or not output.parent.is_dir()):
            parser.error(
                f"cannot write {options.output!r}: {'it is' if output.is_dir() else 'its folder is not'} a folder"
            )
        stderr = sys.stderr
        pid = os.getpid()
        try:
            prepare = prepare_script if options.module is None else prepare_module
            program = prepare(words[0], words[1:])
        except ProgramNotFoundError as error:
            parser.error(str(error))
        with LeakDetector() as detector:
            outcome = run_program(program)
            if os.getpid() != pid:
                # A child that the program forked, and that came back here: the report is its parent's.
                return exit_as(outcome)
            report = detector.report()
        del program
        ended: Ending = "interrupt" if outcome.interrupted else "exception" if outcome.failed else "exit"
        facts = replace(
            report.program, argv=tuple(words), module=options.module is not None, status=outcome.status, ended=ended
        )
        [process] = report.processes
        report = replace(report, program=facts, processes=(replace(process, status=outcome.status, ended=ended),))
        if output is not None:
            _write(output, json_of(report))
        # Where stderr has been closed there is nobody to tell.
        with suppress(OSError, ValueError):
            print(f"leak-report: {report}", file=stderr, flush=True)
        if options.fail_on_leak and report.leaks and outcome.status == 0:
            return LEAKED
        return exit_as(outcome)


def _write(output: Path, text: str) -> None:
    """Write a file as a whole or not at all; what is no regular file (a pipe, a terminal) is written to."""
    if output.exists() and not output.is_file():
        output.write_text(text, encoding="utf-8")
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, output)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
