"""``leak-report run``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, get_args

from ..report.leaks import LeakKind
from ..report.report import Ending, Settings
from ..running.program import (
    Outcome,
    ProgramNotFoundError,
    exit_as,
    prepare_code,
    prepare_module,
    prepare_script,
    run_program,
)
from ..running.session import Session
from ..saved.settings_file import SuppressionError, find_settings, suppressions_of
from .arguments import nbytes_of_text, seconds_of_text
from .live import LiveView, live_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..report.report import Report

__all__ = [
    "Run",
    "check_output",
    "leaks_of_kinds",
    "parse_kinds",
]

LEAKED: Final = 3
"""The exit status where the program itself succeeded, and leaked what `--fail-on` names."""

_KINDS: Final = cast("tuple[LeakKind, ...]", get_args(LeakKind))


class Run:
    """Run a program and report what it leaked.

    Runs a Python program unchanged under the leak detector. When it ends, also by an exception, by
    Ctrl-C or by os._exit, what leaked is printed to stderr, worst first, with the line that made it
    and what holds it. The program's output, arguments and exit status are its own. Processes that
    it forks, or starts with multiprocessing (the workers of a DataLoader), are watched too.

    With -o the report is also written to a file, now and then while the program runs and at its
    end: what was known is there even if the program is killed.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options come before the program; all that follows it is the program's."""
        parser.usage = "leak-report run [OPTIONS] (SCRIPT | -m MODULE | -c CODE) [ARGS ...]"
        parser.add_argument("-o", "--output", metavar="FILE", help="also write the report to FILE, as JSON")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")
        parser.add_argument("-q", "--quiet", action="store_true", help="do not print the report")
        parser.add_argument(
            "--frames", metavar="N", type=int, default=1, help="keep so many lines of the stack of each birth (1)"
        )
        parser.add_argument(
            "--sample", metavar="BYTES", type=nbytes_of_text, help="keep about one birth for so many bytes: 512KiB"
        )
        parser.add_argument(
            "--kinds",
            metavar="KIND[,KIND]",
            type=_names,
            help="tell of these kinds of tensor only: torch.Tensor,Tensor",
        )
        parser.add_argument(
            "--fail-on",
            metavar="KIND[,KIND]",
            type=parse_kinds,
            help=f"exit with {LEAKED} where the program succeeded, and leaked: any, or of {', '.join(_KINDS)}",
        )
        parser.add_argument(
            "--threshold", metavar="BYTES", type=nbytes_of_text, default=0, help="leave out leaks of fewer bytes"
        )
        parser.add_argument(
            "--time-limit",
            metavar="SECONDS",
            type=seconds_of_text,
            default=5.0,
            help="how long holders are searched for at the end (5)",
        )
        parser.add_argument(
            "--config", metavar="FILE", help="read suppressions from FILE (.leak-report.toml, else pyproject.toml)"
        )
        parser.add_argument(
            "--live",
            action="store_true",
            help="show live bytes by line, open scopes and resident memory meanwhile (needs rich); a line every few "
            "seconds where stderr is no terminal",
        )
        parser.add_argument(
            "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module, as `python -m` does"
        )
        parser.add_argument(
            "-c", dest="code", metavar="CODE", nargs=argparse.REMAINDER, help="run a text, as `python -c` does"
        )
        parser.add_argument(
            "program",
            metavar="SCRIPT",
            nargs=argparse.REMAINDER,
            help="run a file, as `python` does, with its arguments",
        )

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Run the program, print the report."""
        prepare: Callable[[str, list[str]], Callable[[], object]] = prepare_script
        words: list[str] = options.program
        if options.module is not None:
            prepare, words = prepare_module, options.module
        elif options.code is not None:
            prepare, words = prepare_code, options.code
        if words[:1] == ["--"]:
            words = words[1:]
        if not words:
            parser.error("name a program: a SCRIPT, -m MODULE, or -c CODE")
        if options.frames < 1:
            parser.error(f"--frames must be at least 1, not {options.frames}")
        output = check_output(options.output, options.force, parser)
        settings = Settings(
            frames=options.frames,
            sample_nbytes=options.sample,
            kinds=options.kinds,
            threshold_nbytes=options.threshold,
            time_limit_s=options.time_limit,
        )
        config = find_settings(Path.cwd()) if options.config is None else Path(options.config)
        try:
            suppressions = () if config is None else suppressions_of(config)
        except SuppressionError as error:
            parser.error(str(error))
        stderr = sys.stderr
        view: LiveView | None = live_view(stderr, parser) if options.live else None
        try:
            program = prepare(words[0], words[1:])
        except ProgramNotFoundError as error:
            parser.error(str(error))

        def tell(report: Report) -> None:
            # Where stderr has been closed there is nobody to tell.
            with suppress(OSError, ValueError):
                if not options.quiet:
                    print(f"leak-report: {report}", file=stderr, flush=True)

        argv = tuple(words) if options.code is None else ("-c", *words[1:])
        with Session(argv, options.module is not None, settings, output, tell, suppressions) as session:
            if view is not None:
                view.start(session.detector)
            outcome = run_program(program)
            if view is not None:
                view.stop()
            report = session.finish(_ending(outcome), outcome.status)
            if session.is_worker:
                # A child that the program forked, and that came back here: its parent tells.
                return exit_as(outcome)
        del program
        tell(report)
        if outcome.status == 0 and leaks_of_kinds(report, options.fail_on):
            return LEAKED
        return exit_as(outcome)


def _ending(outcome: Outcome) -> Ending:
    return "interrupt" if outcome.interrupted else "exception" if outcome.failed else "exit"


def check_output(name: str | None, force: bool, parser: argparse.ArgumentParser) -> Path | None:
    """The path of a file to be written, which the program may leave the folder of; a usage error where it cannot be."""
    if name is None:
        return None
    output = Path(os.path.abspath(name))
    if output.is_dir():
        parser.error(f"cannot write {name!r}: it is a folder")
    if not output.parent.is_dir():
        parser.error(f"cannot write {name!r}: its folder is not a folder")
    if output.is_file() and not force:
        parser.error(f"{name!r} exists already; --force overwrites it")
    return output


def parse_kinds(text: str) -> tuple[LeakKind, ...]:
    """The kinds of leak in a list; all of them for ``any``."""
    names = _names(text)
    unknown = [name for name in names if name not in _KINDS and name != "any"]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown kind of leak {unknown[0]!r}: any, or of {', '.join(_KINDS)}" if unknown else "name a kind of leak"
        )
    return _KINDS if "any" in names else tuple(kind for kind in _KINDS if kind in names)


def leaks_of_kinds(report: Report, kinds: tuple[LeakKind, ...] | None) -> bool:
    """Whether a report has leaks of some kinds; none where no kinds were asked for."""
    return kinds is not None and any(leak.kind in kinds for leak in report.leaks)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
