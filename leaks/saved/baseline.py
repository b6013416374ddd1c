"""The baseline of known leaks, so that a check fails only on new leaks and worse ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from ..report.leaks import Leak
from ..report.report import Report
from .settings_file import SettingsError, read_table, rows_of

__all__ = [
    "Known",
    "beyond_baseline",
    "read_baseline",
    "write_baseline",
]

_SLACK: Final = 1.1
"""A leak is worse than the baseline with more than so many times its bytes or its number."""
_REASON: Final = "was there when the baseline was made"
"""The reason of a leak that is new in the baseline."""
_FIELDS: Final = {"fingerprint": str, "kind": str, "site": str, "count": int, "nbytes": int, "reason": str}
_TABLE: Final = re.compile(r"^\[\[(?:tool\.leak-report\.)?baseline\]\][^\n]*\n(?:(?!\[)[^\n]*\n?)*", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class Known:
    """A known leak.

    Attributes
    ----------
    fingerprint : str
        The fingerprint of the leak.
    kind, site : str
        Its kind and its line, for people: they are not compared.
    count, nbytes : int
        The number of resources, and their bytes.
    reason : str
        Why the leak may stay.
    """

    fingerprint: str
    kind: str
    site: str
    count: int
    nbytes: int
    reason: str


@final
@dataclass(frozen=True, slots=True)
class NotKnown:
    """The difference between a report and a baseline.

    Attributes
    ----------
    new : tuple of Leak
        Leaks that the baseline does not have.
    worse : tuple of Leak
        Leaks that the baseline has with less: `_SLACK`.
    gone : tuple of Known
        Leaks of the baseline that the report does not have.
    """

    new: tuple[Leak, ...]
    worse: tuple[Leak, ...]
    gone: tuple[Known, ...]


def read_baseline(file: Path) -> tuple[Known, ...]:
    """Return the known leaks: the tables ``[[baseline]]`` of a file.

    Raises
    ------
    SettingsError
        The file cannot be read, or an entry is wrong or has no reason.
    """
    rows = rows_of(file, read_table(file), "baseline", "known leak", _FIELDS)
    return tuple(_known(where, fields) for where, fields in rows)


def _known(where: str, fields: dict[str, Any]) -> Known:
    for name, cls in _FIELDS.items():
        value: Any = fields.get(name)
        if not isinstance(value, cls) or isinstance(value, bool):
            raise SettingsError(f"{where}: {name} must be a {cls.__name__}, not {value!r}")
    if not fields["reason"].strip():
        raise SettingsError(f"{where}: it needs a reason")
    return Known(**fields)


def write_baseline(file: Path, leaks: Iterable[Leak]) -> None:
    """Write leaks as the baseline of a file, and keep its reasons and everything else."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    reasons = {known.fingerprint: known.reason for known in read_baseline(file)} if text else {}
    rest = _TABLE.sub("", text).rstrip("\n")
    prefix = "tool.leak-report." if file.name == "pyproject.toml" else ""
    by_fingerprint: dict[str, Known] = {}
    for leak in leaks:
        site = "" if leak.site is None else str(leak.site)
        known = Known(
            leak.fingerprint, leak.kind, site, leak.count, leak.nbytes, reasons.get(leak.fingerprint, _REASON)
        )
        before = by_fingerprint.get(leak.fingerprint)
        if before is not None:
            known = replace(before, count=before.count + known.count, nbytes=before.nbytes + known.nbytes)
        by_fingerprint[leak.fingerprint] = known
    tables = [_table(known, prefix) for known in by_fingerprint.values()]
    file.write_text("\n\n".join([*([rest] if rest else []), *tables]) + "\n", encoding="utf-8")


def _table(known: Known, prefix: str) -> str:
    # A JSON string is also a TOML string.
    return "\n".join(
        [
            f"[[{prefix}baseline]]",
            f"fingerprint = {json.dumps(known.fingerprint)}",
            f"kind = {json.dumps(known.kind)}",
            f"site = {json.dumps(known.site, ensure_ascii=False)}",
            f"count = {known.count}",
            f"nbytes = {known.nbytes}",
            f"reason = {json.dumps(known.reason, ensure_ascii=False)}",
        ]
    )


def beyond_baseline(report: Report, baseline: Iterable[Known]) -> NotKnown:
    """Return the leaks of a report that a baseline does not tolerate."""
    known = {row.fingerprint: row for row in baseline}
    by_fingerprint: dict[str, list[Leak]] = {}
    for leak in report.leaks:
        by_fingerprint.setdefault(leak.fingerprint, []).append(leak)
    new: list[Leak] = []
    worse: list[Leak] = []
    for fingerprint, leaks in by_fingerprint.items():
        row = known.get(fingerprint)
        if row is None:
            new += leaks
        elif (
            sum(leak.count for leak in leaks) > row.count * _SLACK
            or sum(leak.nbytes for leak in leaks) > row.nbytes * _SLACK
        ):
            worse += leaks
    gone = tuple(row for row in known.values() if row.fingerprint not in by_fingerprint)
    return NotKnown(tuple(new), tuple(worse), gone)
