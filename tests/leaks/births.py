"""What a detector has written down of births."""

from __future__ import annotations

from disposescope.scopes.leaks._sightings import Seen


def line_of(seen: Seen) -> int:
    """The number of the innermost line that a birth was seen at."""
    code, instruction = seen.birth.places[0]
    return next(line for start, end, line in code.co_lines() if start <= instruction < end)
