"""The report as JSON, in a versioned format, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from .._records import Record
from .._report import Group, Report
from .._site import Site

__all__ = ["FORMAT", "VERSION", "ReportFileError", "json_of", "report_from_json"]

FORMAT: Final = "disposescope-leak-report"
VERSION: Final = 1


class ReportFileError(ValueError):
    """A file is no report that this version reads; the message says why in one line."""


def json_of(report: Report, program: Mapping[str, object] | None = None) -> str:
    """The report as JSON.

    Parameters
    ----------
    report : Report
        What to write.
    program : mapping, optional
        What was run: goes into the file under ``"program"`` as it is.
    """
    return json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "program": dict(program or {}),
            "count": report.count,
            "nbytes": report.nbytes,
            "groups": [_group(group) for group in report.groups],
            "leftovers": [_group(group) for group in report.leftovers],
        },
        indent=1,
    )


def report_from_json(text: str) -> Report:
    """The report that `json_of` wrote.

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
        return Report(
            tuple(_read_group(row) for row in content["groups"]),
            tuple(_read_group(row) for row in content["leftovers"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ReportFileError(f"is damaged ({type(error).__name__}: {error})") from None


def _group(group: Group) -> dict[str, object]:
    return {
        "site": _site(group.site),
        "state": group.state,
        "count": group.count,
        "nbytes": group.nbytes,
        "used_nbytes": group.used_nbytes,
        "scopes": list(group.scopes),
        "holder": group.holder,
        "records": [_record(record) for record in group.records],
    }


def _record(record: Record) -> dict[str, object]:
    return {
        "kind": record.kind,
        "shape": None if record.shape is None else list(record.shape),
        "dtype": record.dtype,
        "nbytes": record.nbytes,
        "used_nbytes": record.used_nbytes,
        "storages": [list(storage) for storage in record.storages],
        "disposal": _site(record.disposal),
        "scope": record.scope,
        "age_s": record.age_s,
        "generation": record.generation,
    }


def _site(site: Site | None) -> dict[str, object] | None:
    return None if site is None else {"file": site.file, "line": site.line, "function": site.function}


def _read_group(row: Any) -> Group:
    site = _read_site(row["site"])
    state = row["state"]
    if state not in ("alive", "disposed"):
        raise ValueError(f"unknown state {state!r}")
    records = tuple(
        Record(
            kind=str(record["kind"]),
            shape=None if record["shape"] is None else tuple(int(size) for size in record["shape"]),
            dtype=None if record["dtype"] is None else str(record["dtype"]),
            nbytes=int(record["nbytes"]),
            used_nbytes=int(record["used_nbytes"]),
            storages=tuple((int(number), int(nbytes)) for number, nbytes in record["storages"]),
            site=site,
            disposal=_read_site(record["disposal"]),
            scope=None if record["scope"] is None else str(record["scope"]),
            age_s=None if record["age_s"] is None else float(record["age_s"]),
            generation=None if record["generation"] is None else int(record["generation"]),
            state=state,
        )
        for record in row["records"]
    )
    if not records:
        raise ValueError("a group without records")
    return Group(site, state, str(row["holder"]), records)


def _read_site(row: Any) -> Site | None:
    return None if row is None else Site(str(row["file"]), int(row["line"]), str(row["function"]))
