"""Files of reports: written as a whole or not at all, and read where the processes of a session leave them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ._report import Report
from .reporters._json import ReportFileError, json_of, report_from_json

__all__ = ["reports_in", "write_report"]


def write_report(report: Report, output: Path) -> None:
    """Write a file as a whole or not at all; what is no regular file (a pipe, a terminal) is written to."""
    text = json_of(report)
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


def reports_in(folder: Path | None) -> list[Report]:
    """What the processes that have written into a folder know; of one that was killed, what it wrote last."""
    found: list[Report] = []
    for path in sorted(folder.glob("*.json")) if folder is not None else ():
        # One that was killed while it wrote left its last report, or none at all.
        with suppress(OSError, ReportFileError, UnicodeDecodeError):
            found.append(_told_dead(report_from_json(path.read_text(encoding="utf-8"))))
    return found


def _told_dead(report: Report) -> Report:
    """A report that was written while its process ran, and the process has been killed since."""
    if report.program.ended != "running" or _runs(report.program.pid):
        return report
    return replace(
        report,
        program=replace(report.program, ended="killed"),
        processes=tuple(replace(process, ended="killed") for process in report.processes),
    )


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    # One that has ended and was not waited for yet is there still.
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] != [b"Z"]
    return True
