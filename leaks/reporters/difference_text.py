"""Write the difference of two reports as text for a terminal, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ...scopes.base.process import bytes_text
from .codec import encoded

if TYPE_CHECKING:
    from ..report.difference import Change, Difference

__all__ = [
    "difference_json_of",
    "difference_text_of",
]

FORMAT: Final = "disposescope-leak-difference"
VERSION: Final = 1

_INDENT: Final = " " * 5
_SHOWN: Final = ("new", "gone", "grown", "shrunk")


def difference_text_of(difference: Difference) -> str:
    """Return a line of totals, then the new, gone, grown and shrunk leaks, most bytes first."""
    changed = {name: getattr(difference, name) for name in _SHOWN}
    totals = ", ".join(f"{len(changes):,} {name}" for name, changes in changed.items())
    pinned = _arrow(bytes_text(difference.old_nbytes), bytes_text(difference.new_nbytes))
    lines = [f"{totals}, {len(difference.same):,} the same; {pinned} pinned"]
    if difference.old_verdict != difference.new_verdict or difference.undecided:
        lines.append(
            f"verdict: {_arrow(*(verdict or 'none' for verdict in (difference.old_verdict, difference.new_verdict)))}"
        )
    lines += [f"undecided: {line}" for line in difference.undecided]
    for name, changes in changed.items():
        if changes:
            lines += ["", f"{name}:"]
            lines += [line for change in changes for line in _change_lines(name, change)]
    return "\n".join(lines)


def difference_json_of(difference: Difference) -> str:
    """Return the difference as JSON, with an array of changes for each sort of change."""
    return json.dumps({"format": FORMAT, "version": VERSION, **encoded(difference)}, indent=1)


def _change_lines(name: str, change: Change) -> list[str]:
    leak = change.leak
    if name in ("grown", "shrunk"):
        count = _arrow(f"{change.old_count:,}", f"{change.new_count:,}")
        size = _arrow(bytes_text(change.old_nbytes), bytes_text(change.new_nbytes))
    else:
        count = f"{max(change.old_count, change.new_count):,}"
        size = bytes_text(max(change.old_nbytes, change.new_nbytes))
    what = "" if leak.tensor is None else f"{count} × {leak.tensor}, "
    lines = [f"  {leak.kind} ({leak.sure}): {what}{size}"]
    if leak.site is not None:
        lines.append(f"{_INDENT}born at {leak.site}")
    if name != "gone":
        lines += [f"{_INDENT}held by {text}" for text in leak.holders[:1] if not text.startswith("not found")]
    return lines


def _arrow(old: str, new: str) -> str:
    """Return both texts with an arrow between, or one text if they are equal."""
    return old if old == new else f"{old} → {new}"
