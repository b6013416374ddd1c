"""Write leaks as annotations of GitHub Actions, which shows them at their lines in a change.

The format is that of the workflow commands ``error`` and ``warning``:
https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterable

from ...scopes.base.sites import shown
from ..report.leaks import Leak
from ..report.report import Report, size_of

__all__ = [
    "github_of",
    "github_of_undecided",
]


def github_of(report: Report) -> str:
    """Return one annotation for each leak, worst first; ``""`` without leaks."""
    return "\n".join(_annotation(leak) for leak in report.leaks)


def github_of_undecided(lines: Iterable[str]) -> str:
    """Return one warning for each line that says what could not be judged."""
    return "\n".join(f"::warning title=undecided::{_escaped(line)}" for line in lines)


def _annotation(leak: Leak) -> str:
    location = "" if leak.site is None else f" file={_property(shown(leak.site.file))},line={leak.site.line},"
    title = _property(f"{leak.kind} ({leak.sure})")
    what = "" if leak.tensor is None else f"{leak.count:,} × {leak.tensor}, {size_of(leak)}, "
    held = f"held by {leak.holder}. " if leak.holders else ""
    return f"::error{location or ' '}title={title}::{_escaped(f'{what}{held}{leak.explanation}')}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
