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
"""A leak has become worse with more than so many times its bytes or number in the baseline."""
_REASON: Final = "was there when the baseline was made"
_WANTED: Final = {"fingerprint": str, "kind": str, "site": str, "count": int, "nbytes": int, "reason": str}
_TABLE: Final = re.compile(r"^\[\[(?:tool\.leak-report\.)?baseline\]\][^\n]*\n(?:(?!\[)[^\n]*\n?)*", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class Known:
    """A known leak.

    Attributes
    ----------
    fingerprint : str
        That of the leak.
    kind, site : str
        For people: what it is and where. Not compared.
    count, nbytes : int
        How many there were, and their bytes.
    reason : str
        Why it may stay.
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
        Leaks that it has, with a tenth more in number or bytes.
    gone : tuple of Known
        Leaks of the baseline that are not there any more.
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
    rows = rows_of(file, read_table(file), "baseline", "known leak", _WANTED)
    return tuple(_known(where, fields) for where, fields in rows)


def _known(where: str, fields: dict[str, Any]) -> Known:
    for name, cls in _WANTED.items():
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
    together: dict[str, Known] = {}
    for leak in leaks:
        site = "" if leak.site is None else str(leak.site)
        known = Known(
            leak.fingerprint, leak.kind, site, leak.count, leak.nbytes, reasons.get(leak.fingerprint, _REASON)
        )
        before = together.get(leak.fingerprint)
        if before is not None:
            known = replace(before, count=before.count + known.count, nbytes=before.nbytes + known.nbytes)
        together[leak.fingerprint] = known
    tables = [_table(known, prefix) for known in together.values()]
    file.write_text("\n\n".join([*([rest] if rest else []), *tables]) + "\n", encoding="utf-8")


def _table(known: Known, prefix: str) -> str:
    # A string of JSON without characters beyond ASCII is one of TOML.
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
    there: dict[str, list[Leak]] = {}
    for leak in report.leaks:
        there.setdefault(leak.fingerprint, []).append(leak)
    new: list[Leak] = []
    worse: list[Leak] = []
    for fingerprint, leaks in there.items():
        row = known.get(fingerprint)
        if row is None:
            new += leaks
        elif (
            sum(leak.count for leak in leaks) > row.count * _SLACK
            or sum(leak.nbytes for leak in leaks) > row.nbytes * _SLACK
        ):
            worse += leaks
    return NotKnown(tuple(new), tuple(worse), tuple(row for row in known.values() if row.fingerprint not in there))
