"""Write a report as CSV: one row for each leak, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from typing import Final

from ..report.leaks import Leak
from ..report.report import Report

__all__ = [
    "COLUMNS",
    "csv_of",
]

COLUMNS: Final = (
    "list",
    "kind",
    "sure",
    "tensor",
    "tensor_kind",
    "device",
    "count",
    "nbytes",
    "used_nbytes",
    "file",
    "line",
    "function",
    "op",
    "state",
    "disposal_file",
    "disposal_line",
    "scopes",
    "oldest_age_s",
    "newest_age_s",
    "generation",
    "passes",
    "count_per_pass",
    "nbytes_per_pass",
    "first_pass",
    "fit",
    "holders",
    "carriers",
    "members",
    "explanation",
    "fingerprint",
    "pid",
    "rank",
    "reason",
    "graph_nbytes",
)


def csv_of(report: Report) -> str:
    """Return the leaks as CSV (RFC 4180), with the names of columns in the first row.

    The column ``list`` says whether a row is one of the ``leaks``, ``kept``, ``leftovers`` or
    ``suppressed``. Several holders, scopes and so on are lines of one cell. An unknown value is an
    empty cell.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for name, leaks in (("leaks", report.leaks), ("kept", report.kept), ("leftovers", report.leftovers)):
        for leak in leaks:
            writer.writerow(_row(name, leak, None))
    for suppressed in report.suppressed:
        writer.writerow(_row("suppressed", suppressed.leak, suppressed.reason))
    return text.getvalue()


def _row(name: str, leak: Leak, reason: str | None) -> list[object]:
    site, disposal, trend = leak.site, leak.disposal, leak.trend
    return [
        name,
        leak.kind,
        leak.sure,
        leak.tensor,
        leak.tensor_kind,
        leak.device,
        leak.count,
        leak.nbytes,
        leak.used_nbytes,
        *((None, None, None) if site is None else (site.file, site.line, site.function)),
        leak.op,
        leak.state,
        *((None, None) if disposal is None else (disposal.file, disposal.line)),
        "\n".join("outside every scope" if scope is None else scope for scope in leak.scopes),
        leak.oldest_age_s,
        leak.newest_age_s,
        leak.generation,
        *(
            (None,) * 5
            if trend is None
            else (trend.passes, trend.count_per_pass, trend.nbytes_per_pass, trend.first_pass, trend.fit)
        ),
        "\n".join(leak.holders),
        "\n".join(leak.carriers),
        "\n".join(leak.members),
        leak.explanation,
        leak.fingerprint,
        leak.pid,
        leak.rank,
        reason,
        leak.graph_nbytes,
    ]
