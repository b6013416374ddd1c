"""The report as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._leak import Leak
    from .._report import Report

__all__ = ["bytes_text", "text_of"]

_INDENT = " " * 5


def text_of(report: Report) -> str:
    """The report, worst first, with a line for the total; ``"no leaks"`` where there is none.

    Parameters
    ----------
    report : Report
        Made from a snapshot, or read from a file.
    """
    lines: list[str] = []
    if report.leaks:
        sites = len({leak.site for leak in report.leaks})
        pinned = bytes_text(report.nbytes)
        lines.append(f"{_counted(report.count, 'leak')} at {_counted(sites, 'site')}, {pinned} pinned, worst first")
        for number, leak in enumerate(report.leaks, 1):
            lines += ["", *_leak_lines(number, leak)]
    else:
        lines.append("no leaks")
    for title, rows in (
        ("no leak, alive and held by the program:", report.kept),
        ("no leak, disposed or escaped, and only named by a left-over variable:", report.leftovers),
    ):
        if rows:
            lines += ["", title]
            lines += [f"{_INDENT}{_what(leak)}, {_size(leak)}born at {_site(leak)}: {leak.holder}" for leak in rows]
    own = [sample for sample in report.timeline.samples if sample.pid in (None, report.program.pid)]
    if report.leaks and own:
        last = own[-1]
        in_use, kept = bytes_text(sum(last.live_nbytes.values())), bytes_text(last.cached_nbytes)
        lines += [
            "",
            f"memory at the end: {bytes_text(last.rss_nbytes)} resident, {in_use} in use by tensors, "
            f"{kept} kept by allocators for later use",
        ]
    if report.suppressed:
        lines += ["", "suppressed:"]
        lines += [f"{_INDENT}{_what(row.leak)} born at {_site(row.leak)}: {row.reason}" for row in report.suppressed]
    if report.unused_suppressions:
        lines += ["", "suppressions that matched nothing:"]
        lines += [f"{_INDENT}{row.file}, number {row.index + 1}: {row.reason}" for row in report.unused_suppressions]
    return "\n".join(lines)


def bytes_text(nbytes: int) -> str:
    """A number of bytes with a unit, in powers of 1000."""
    if nbytes < 1000:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def _leak_lines(number: int, leak: Leak) -> list[str]:
    lines = [f"{number:>3}. {_headline(leak)}"]
    if leak.tensor is not None:
        made = "" if leak.op is None else f" by {leak.op}"
        lines.append(f"{_INDENT}born at {_site(leak)}{made}, {_scopes(leak)}{_age(leak)}")
    elif leak.site is not None:
        lines.append(f"{_INDENT}opened at {_site(leak)}{_age(leak)}")
    lines += [f"{_INDENT}called from {frame}" for frame in leak.frames[1:]]
    if leak.disposal is not None:
        disposals = {str(record.disposal) for record in leak.records if record.disposal is not None}
        more = f" and {len(disposals) - 1} more" if len(disposals) > 1 else ""
        lines.append(f"{_INDENT}disposed at {leak.disposal}{more}")
    if leak.kind == "view":
        lines.append(f"{_INDENT}view: {bytes_text(leak.used_nbytes)} used, {bytes_text(leak.nbytes)} pinned")
    if leak.trend is not None:
        trend = leak.trend
        lines.append(
            f"{_INDENT}grows by {_rate(trend.count_per_pass)} and {bytes_text(round(trend.nbytes_per_pass))} per pass, "
            f"over {trend.passes} passes"
        )
    lines += [
        f"{_INDENT}holder {text}" if text.startswith("not found") else f"{_INDENT}held by {text}"
        for text in leak.holders
    ]
    lines += [f"{_INDENT}whose graph is carried by {text}" for text in leak.carriers]
    return lines


def _headline(leak: Leak) -> str:
    if leak.tensor is None:
        return f"{leak.kind} ({leak.sure}): {leak.explanation}"
    state = "alive" if leak.state == "alive" else "disposed under a live reference"
    return f"{leak.kind} ({leak.sure}): {_what(leak)}, {bytes_text(leak.nbytes)}, {state}"


def _rate(per_pass: float) -> str:
    return f"{per_pass:.2f}".rstrip("0").rstrip(".")


def _what(leak: Leak) -> str:
    described = dict.fromkeys(str(record) for record in leak.records)
    more = f" and {_counted(len(described) - 1, 'other shape')}" if len(described) > 1 else ""
    return f"{leak.count:,} × {leak.tensor}{more}"


def _size(leak: Leak) -> str:
    return "" if leak.state == "disposed" else f"{bytes_text(leak.nbytes)}, "


def _site(leak: Leak) -> str:
    return "an unknown site" if leak.site is None else str(leak.site)


def _scopes(leak: Leak) -> str:
    names = list(leak.scopes)
    if names in ([], [None]):
        return "outside every scope"
    told = [
        "outside every scope" if name is None else repr(name) if name else "a scope without a name"
        for name in names[:3]
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    prefix = "in scope " if names[0] else "in "
    return f"{prefix}{', '.join(told)}{more}"


def _age(leak: Leak) -> str:
    if leak.oldest_age_s is None or leak.generation is None:
        return ""
    return f", {leak.oldest_age_s:.1f} s and {_counted(leak.generation, 'closed scope')} ago"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
