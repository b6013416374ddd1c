"""Write a report as JSON in a versioned format, and read it back for the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, cast, get_args

from ..report.report import Report, Verdict
from .codec import decoded, encoded, schema_of

__all__ = [
    "ReportFileError",
    "is_report",
    "json_of",
    "read_report",
    "report_from_json",
    "schema",
]

FORMAT: Final = "disposescope-leak-report"
VERSION: Final = 2


class ReportFileError(ValueError):
    """Raised if a file is no report that this version reads; the message says why in one line."""


def json_of(report: Report) -> str:
    """Return the report as JSON; its schema is ``report.schema.json`` in this package."""
    verdict = {"verdict": report.verdict, "undecided": report.undecided}
    return json.dumps({"format": FORMAT, "version": VERSION, **verdict, **encoded(report)}, indent=1)


def is_report(file: Path) -> bool:
    """Return whether a file looks like a report of any version, by its first characters."""
    try:
        with file.open(encoding="utf-8") as stream:
            return f'"format": "{FORMAT}"' in stream.read(100)
    except (OSError, UnicodeDecodeError):
        return False


def report_from_json(text: str) -> Report:
    """Return the report that `json_of` wrote.

    Raises
    ------
    ReportFileError
        The text is truncated, no JSON, no report, or of another version of the format.
    """
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportFileError(f"is truncated or no JSON ({error})") from None
    content = cast("dict[str, Any]", content) if type(content) is dict else {}
    if content.get("format") != FORMAT:
        raise ReportFileError("is no leak report")
    version: object = content.get("version")
    if version != VERSION:
        raise ReportFileError(f"has version {version!r} of the format, and this program reads version {VERSION}")
    try:
        return cast("Report", decoded(Report, content))
    except ValueError as error:
        raise ReportFileError(f"is damaged ({error})") from None


def schema() -> dict[str, Any]:
    """Return the JSON schema of the format: the content of ``report.schema.json``."""
    described = schema_of(Report)
    definition = described["$defs"]["Report"]
    own = {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "verdict": {
            "enum": [*get_args(Verdict), None],
            "description": "What the report says of the run as a whole; null where the program never ran.",
        },
        "undecided": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What could not be judged, why, and what lifts that.",
        },
    }
    definition["properties"] = {**own, **definition["properties"]}
    definition["required"] = [*own, *definition["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT}, version {VERSION}",
        **described,
    }


# Read the report files that are given to the verbs of the command line.


def read_report(name: str) -> Report:
    """Return the report in a file, or on the standard input if the name is ``-``.

    Raises
    ------
    ReportFileError
        The file cannot be read, or is no report that this version reads. The message names it and
        says why.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8") if name == "-" else Path(name).read_text(encoding="utf-8")
        return report_from_json(text)
    except OSError as error:
        raise ReportFileError(f"cannot read {name!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ReportFileError(f"{name!r} is no leak report") from None
    except ReportFileError as error:
        raise ReportFileError(f"{name!r} {error}") from None
