"""``leak-report check``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...scopes.base.process import bytes_text
from ..report.report import text_of, undecided_of
from ..reporters.github import github_of, github_of_undecided
from ..saved.baseline import Known, beyond_baseline, read_baseline, write_baseline
from ..saved.settings_file import SettingsError, find_settings, suppressed_by, suppressions_of
from .arguments import add_report_argument, growth_of_text, reader_may_leave, report_in
from .run import UNDECIDED, parse_kinds

if TYPE_CHECKING:
    from ..report.leaks import Leak
    from ..report.report import Report

__all__ = [
    "Check",
    "printed",
]

FOUND: Final = 3
"""The exit status for leaks that are not tolerated."""


class Check:
    """Fail if a report has leaks that are not tolerated: the check for continuous integration.

    Exits with 0 where FILE, which `leak-report run` wrote, has no leak but those that are
    suppressed, in the baseline, or slower than --max-growth; else prints those and exits with 3.
    Exits with 4 where there is none, and not everything could be judged: what, and what to do about
    it, is printed; a suppression tolerates that of a line.
    Options and suppressions are read from .leak-report.toml or the table tool.leak-report of
    pyproject.toml in the working directory.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file and what is tolerated."""
        add_report_argument(parser)
        parser.add_argument(
            "--max-growth",
            metavar="BYTES/pass",
            type=growth_of_text,
            help="tolerate what grows from pass to pass by no more than this: 1MiB/pass",
        )
        parser.add_argument(
            "--fail-on", metavar="KIND[,KIND]", type=parse_kinds, help="look at these kinds of leak only"
        )
        parser.add_argument(
            "--baseline", metavar="FILE", help="tolerate the leaks that this file lists, unless they have become worse"
        )
        parser.add_argument(
            "--update-baseline", action="store_true", help="write the leaks of the report into the baseline instead"
        )
        parser.add_argument("--config", metavar="FILE", help="read options and suppressions from this file")
        parser.add_argument(
            "--format",
            choices=("text", "github"),
            default="text",
            help="print the leaks as text, or as annotations of GitHub Actions (text)",
        )

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Read the report, print the leaks that are not tolerated, and return the exit status."""
        if options.update_baseline and options.baseline is None:
            parser.error("--update-baseline needs --baseline FILE")
        settings = find_settings(Path.cwd()) if options.config is None else Path(options.config)
        baseline = None if options.baseline is None else Path(options.baseline)
        known: tuple[Known, ...] = ()
        report = report_in(options.file, parser)
        try:
            report = suppressed_by(report, () if settings is None else suppressions_of(settings))
            if baseline is not None and (baseline.exists() or not options.update_baseline):
                known = read_baseline(baseline)
        except SettingsError as error:
            parser.error(str(error))
        leaks = [
            leak
            for leak in report.leaks
            if (options.fail_on is None or leak.kind in options.fail_on) and not _is_slow(leak, options.max_growth)
        ]
        if baseline is not None and options.update_baseline:
            try:
                write_baseline(baseline, leaks)
            except OSError as error:
                parser.error(f"cannot write {options.baseline!r}: {error.strerror}")
            return printed(f"{options.baseline}: {len(leaks):,} known leak{'' if len(leaks) == 1 else 's'}", 0)
        difference = beyond_baseline(_only(report, leaks), known)
        for row in difference.gone:
            print(f"in the baseline and not there any more: {row.kind} at {row.site} ({row.reason})", file=sys.stderr)
        failing = [*difference.new, *difference.worse]
        tolerated = len(report.leaks) - len(failing)
        failing_report = _only(report, failing)
        if not failing:
            counts = (tolerated, "tolerated"), (len(report.suppressed), "suppressed")
            known_too = "".join(f", {count} {how}" for count, how in counts if count)
            open_questions = undecided_of(report, options.fail_on)
            if open_questions:
                if options.format == "github":
                    return printed(github_of_undecided(open_questions), UNDECIDED)
                text = "\n".join(f"undecided: {line}" for line in open_questions)
                return printed(f"no leak found{known_too}, and not everything could be judged\n{text}", UNDECIDED)
            return printed(f"no leaks{known_too}", 0)
        worse = f", {len(difference.worse)} of them worse than in the baseline" if difference.worse else ""
        leaks_are = "leak that is" if len(failing) == 1 else "leaks that are"
        head = f"{len(failing)} {leaks_are} not tolerated{worse}, {bytes_text(failing_report.nbytes)}:"
        if options.format == "github":
            return printed(github_of(failing_report), FOUND)
        return printed(f"{head}\n\n{text_of(failing_report)}", FOUND)


def _is_slow(leak: Leak, max_growth: int | None) -> bool:
    """Return whether a leak grows by no more than ``--max-growth`` allows."""
    # Over births of a line nothing is known of passes.
    if max_growth is None or leak.trend is None or leak.trend.over != "passes":
        return False
    return leak.trend.nbytes_per_pass <= max_growth


def _only(report: Report, leaks: list[Leak]) -> Report:
    """Return the report with only some leaks, which are sorted in place."""
    leaks.sort(key=lambda leak: (-leak.nbytes, -leak.count))
    return replace(
        report,
        leaks=tuple(leaks),
        count=sum(leak.count for leak in leaks),
        nbytes=sum(leak.nbytes for leak in leaks),
        kept=(),
        leftovers=(),
    )


def printed(text: str, status: int) -> int:
    """Print a text and return a status; a reader that closes the pipe early is no error."""
    with reader_may_leave():
        print(text)
    return status
