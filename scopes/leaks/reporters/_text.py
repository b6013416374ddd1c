"""The report as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._records import Record
    from .._report import Group, Report

__all__ = ["bytes_text", "text_of"]


def text_of(report: Report) -> str:
    """The report, worst first, with a line for the total; ``"no leaks"`` where there is none.

    Parameters
    ----------
    report : Report
        Made from a snapshot, or read from a file.
    """
    lines: list[str] = []
    if report.groups:
        sites = len({group.site for group in report.groups})
        pinned = bytes_text(report.nbytes)
        lines.append(f"{_counted(report.count, 'leak')} at {_counted(sites, 'site')}, {pinned} pinned, worst first")
        for number, group in enumerate(report.groups, 1):
            lines += ["", *_group_lines(number, group)]
    else:
        lines.append("no leaks")
    if report.leftovers:
        lines += ["", "no leak, disposed and only named by a left-over variable:"]
        for group in report.leftovers:
            lines.append(f"     {_what(group)} born at {_site(group)}: {group.holder}")
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


def _group_lines(number: int, group: Group) -> list[str]:
    state = "alive" if group.state == "alive" else "disposed under a live reference"
    indent = " " * 5
    lines = [
        f"{number:>3}. {_what(group)}, {bytes_text(group.nbytes)}, {state}",
        f"{indent}born at {_site(group)}, {_scopes(group)}{_age(group.records[0])}",
    ]
    disposals = list(dict.fromkeys(str(record.disposal) for record in group.records if record.disposal is not None))
    if disposals:
        more = f" and {len(disposals) - 1} more" if len(disposals) > 1 else ""
        lines.append(f"{indent}disposed at {disposals[0]}{more}")
    if any(record.is_view for record in group.records):
        lines.append(f"{indent}view: {bytes_text(group.used_nbytes)} used, {bytes_text(group.nbytes)} pinned")
    lines.append(
        f"{indent}holder {group.holder}" if group.holder.startswith("not found") else f"{indent}held by {group.holder}"
    )
    return lines


def _what(group: Group) -> str:
    described = list(dict.fromkeys(str(record) for record in group.records))
    more = f" and {_counted(len(described) - 1, 'other shape')}" if len(described) > 1 else ""
    return f"{group.count} × {described[0]}{more}"


def _site(group: Group) -> str:
    return "an unknown site" if group.site is None else str(group.site)


def _scopes(group: Group) -> str:
    names = list(dict.fromkeys(group.scopes))
    if names == [None]:
        return "outside every scope"
    told = [
        "outside every scope" if name is None else repr(name) if name else "a scope without a name"
        for name in names[:3]
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    prefix = "in scope " if names[0] else "in "
    return f"{prefix}{', '.join(told)}{more}"


def _age(oldest: Record) -> str:
    if oldest.age_s is None or oldest.generation is None:
        return ""
    return f", {oldest.age_s:.1f} s and {_counted(oldest.generation, 'closed scope')} ago"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
