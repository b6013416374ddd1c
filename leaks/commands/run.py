"""``leak-report run``."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast, get_args

from ..report.leaks import LeakKind
from ..report.report import OBJECT_LIMIT, TENSOR_KINDS, Ending, Settings, undecided_of
from ..reporters.json_report import is_report
from ..reporters.tables import print_report
from ..running.live_view import LiveView, live_view
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
from ..saved.settings_file import SettingsError, find_settings, suppressions_of
from .arguments import ALL, REPORT, count_of_text, nbytes_of_text, option_names_of, report_output

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..report.report import Report

__all__ = [
    "Run",
    "parse_kinds",
]

LEAKED: Final = 3
"""The exit status if the program itself succeeded and has leaks of a kind in ``--fail-on``."""
UNDECIDED: Final = 4
"""The exit status if no such leak was found, but not everything could be judged."""

_LIBRARIES: Final = ("torch", "numpy", "jax")
"""Libraries whose kinds of tensor are all in `TENSOR_KINDS`."""
_KINDS: Final = cast("tuple[LeakKind, ...]", get_args(LeakKind))


class Run:
    """Run a program and report what it leaked.

    Runs a Python program unchanged under the leak detector. When it ends, also by an exception, by
    Ctrl-C or by os._exit, what leaked is printed to stderr, with the line that made it and what
    holds it, the most bytes first. The program's output, arguments and exit status are its own.
    Processes that it forks, or starts with multiprocessing (the workers of a DataLoader) or
    subprocess, are watched too.

    The report is also written to a file, now and then while the program runs and at its end: what
    was known is there even if the program is killed. Options may also stand in .leak-report.toml,
    or in the table tool.leak-report of pyproject.toml, in the working directory.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options, which come before the program; what follows it is the program's."""
        parser.usage = "leak-report run [OPTIONS] (SCRIPT | -m MODULE | -c CODE) [ARGS ...]"
        parser.add_argument("-o", "--output", metavar="FILE", help=f"keep the report in FILE, as JSON ({REPORT})")
        parser.add_argument("--force", action="store_true", help="overwrite FILE, also if it is no report")
        parser.add_argument("--all", action="store_true", help=ALL)
        parser.add_argument(
            "--peak",
            action="store_true",
            help="also say at which line the most memory is in use, what lives there, and what would lower it",
        )
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
            type=_tensor_kinds,
            help="report these kinds of tensor only: torch.Tensor,Tensor",
        )
        parser.add_argument(
            "--fail-on",
            metavar="KIND[,KIND]",
            type=parse_kinds,
            help=f"exit with {LEAKED} where the program succeeded, and leaked: any, or of {', '.join(_KINDS)}; with "
            f"{UNDECIDED} where nothing was found, and not everything could be judged",
        )
        parser.add_argument(
            "--threshold",
            metavar="BYTES",
            type=nbytes_of_text,
            default=0,
            help="list leaks of fewer bytes as suppressed",
        )
        parser.add_argument(
            "--object-limit",
            metavar="N",
            type=count_of_text,
            default=OBJECT_LIMIT,
            help=f"how many objects the search for holders meets at most ({OBJECT_LIMIT:,})",
        )
        parser.add_argument("--time-limit", nargs="?", const="", type=_no_time_limit, help=argparse.SUPPRESS)
        parser.add_argument(
            "--config",
            metavar="FILE",
            help="read options and suppressions from FILE (.leak-report.toml, else pyproject.toml)",
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
        """Run the program, print the report, and return the exit status."""
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
        output, not_kept = (
            _default_output() if options.output is None else (report_output(options.output, options.force, parser), "")
        )
        settings = Settings(
            frames=options.frames,
            sample_nbytes=options.sample,
            kinds=options.kinds,
            threshold_nbytes=options.threshold,
            object_limit=options.object_limit,
        )
        config = find_settings(Path.cwd()) if options.config is None else Path(options.config)
        try:
            suppressions = () if config is None else suppressions_of(config)
        except SettingsError as error:
            parser.error(str(error))
        stderr = sys.stderr
        view: LiveView | None = live_view(stderr, parser) if options.live else None
        try:
            program = prepare(words[0], words[1:])
        except ProgramNotFoundError as error:
            parser.error(str(error))

        def show(report: Report) -> None:
            # The standard error may be closed; then nothing can be printed.
            with suppress(OSError, ValueError):
                if not options.quiet:
                    print_report(report, stderr, prefix="leak-report: ", everything=options.all)
                    has_failed = bool(report.program.status)
                    mistaken = _options_among(words[1:], parser, is_kept=options.output is not None, failed=has_failed)
                    print(_where(options.output, not_kept, mistaken), file=stderr, flush=True)

        argv = tuple(words) if options.code is None else ("-c", *words[1:])
        is_module = options.module is not None
        outcome = Outcome(0)
        session = Session(argv, is_module, settings, output, show, suppressions, options.peak)

        def say(text: str) -> None:
            # A child that the program forked may come here. Its parent prints the report.
            with suppress(OSError, ValueError):
                if not options.quiet and not session.is_worker:
                    print(f"leak-report: {text}", file=stderr, flush=True)

        def returned(how: Outcome) -> None:
            nonlocal outcome
            outcome = how
            if how.interrupted:
                say("making the report; Ctrl-C again ends without it")
            session.take_inventory(_ending(how))

        try:
            with session:
                if view is not None:
                    view.start(session.detector)
                try:
                    run_program(program, returned=returned, joined=session.complete_inventory)
                finally:
                    if view is not None:
                        view.stop()
                report = session.finish(_ending(outcome), outcome.status, outcome.error)
            del program
            if not session.is_worker:
                show(report)
        except KeyboardInterrupt:
            say("ended by Ctrl-C, without a report")
            return exit_as(replace(outcome, interrupted=True))
        if outcome.status == 0 and options.fail_on is not None and not session.is_worker:
            if leaks_of_kinds(report, options.fail_on):
                return LEAKED
            if undecided_of(report, options.fail_on):
                return UNDECIDED
        return exit_as(outcome)


def _default_output() -> tuple[Path | None, str]:
    """Return the file of the report without ``-o``, and why there is none; one of both is empty."""
    output = Path.cwd() / REPORT
    if output.exists() and not is_report(output):
        return None, f"{REPORT} is no report of leak-report"
    if not os.access(output.parent, os.W_OK):
        return None, "the working directory cannot be written to"
    return output, ""


def _options_among(args: list[str], parser: argparse.ArgumentParser, *, is_kept: bool, failed: bool) -> str:
    """Return an option of `run` that the program was given, perhaps by mistake; ``""`` for none.

    Where the program succeeded, only ``-o`` counts, unless it was also given to `run`: the program
    may have options of the same names.
    """
    names = set[str]() if is_kept else {"-o", "--output"}
    if failed:
        names |= {name for name in option_names_of(parser) if name.startswith("--")}
    return next((word for word in args if word.partition("=")[0] in names), "")


def _where(name: str | None, not_kept: str, mistaken: str) -> str:
    """Return the last printed line: where the report is, and how to see it again.

    Parameters
    ----------
    name : str or None
        The value of ``-o``.
    not_kept : str
        Why the report is not kept; ``""`` if it is.
    mistaken : str
        An option of `run` that the program was given; ``""`` for none.
    """
    note = f" ({mistaken} after the program was the program's: name it before)" if mistaken else ""
    if name is not None:
        return f"written to {name}; to see it as a page: leak-report html {shlex.quote(name)}{note}"
    if not_kept:
        return f"the report is not kept, as {not_kept}; -o FILE keeps it in another file{note}"
    return f"written to {REPORT}; to see it as a page: leak-report html{note}"


def _ending(outcome: Outcome) -> Ending:
    if not outcome.ran:
        return "not run"
    return "interrupt" if outcome.interrupted else "exception" if outcome.failed else "exit"


def parse_kinds(text: str) -> tuple[LeakKind, ...]:
    """Return the kinds of leak in a list; all kinds for ``any``."""
    names = _names(text)
    unknown = [name for name in names if name not in _KINDS and name != "any"]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown kind of leak {unknown[0]!r}: any, or of {', '.join(_KINDS)}" if unknown else "name a kind of leak"
        )
    return _KINDS if "any" in names else tuple(kind for kind in _KINDS if kind in names)


def leaks_of_kinds(report: Report, kinds: tuple[LeakKind, ...] | None) -> bool:
    """Return whether a report has leaks of some kinds; False if no kinds are given."""
    return kinds is not None and any(leak.kind in kinds for leak in report.leaks)


def _no_time_limit(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(
        f"there is no limit of time any more (given {text!r}): --object-limit N bounds the search by objects"
    )


def _tensor_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of tensor in a list, and refuse names that are surely misspelled.

    Other unknown names are accepted: the program may register kinds of its own.
    """
    names = _names(text)
    for name in names:
        known = {kind.lower(): kind for kind in TENSOR_KINDS}
        library = name.partition(".")[0].lower()
        if name not in TENSOR_KINDS and (
            name.lower() in known
            or library in _LIBRARIES
            or ("." not in name and difflib.get_close_matches(name, TENSOR_KINDS))
        ):
            meant = known.get(name.lower())
            hint = f"; it is written {meant}" if meant is not None else ""
            raise argparse.ArgumentTypeError(
                f"unknown kind of tensor {name!r}{hint}: known are {', '.join(TENSOR_KINDS)}"
            )
    return names


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
