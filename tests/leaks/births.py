"""What the log of births knows of memory that was seen."""

import pytest

import disposescope as ds
from disposescope.leaks.births.log import LOG, Row, Seen
from disposescope.scopes.sites import Mark

arrays_are_seen = pytest.mark.skipif(
    not ds.arena_statistics().available, reason="the arena reports plain arrays to the log"
)


def row_of(seen: Seen) -> Row:
    window = seen.number - 1, seen.number
    [row] = [*LOG.blocks(*window)[1], *LOG.sightings(*window)[1]]
    return row


def op_of(seen: Seen) -> str | None:
    return LOG.site(row_of(seen).site)[2]


def place_of(seen: Seen) -> Mark:
    return LOG.site(row_of(seen).site)[3][0]


def line_of(seen: Seen) -> int:
    """The line of user code at which it was born."""
    code, instruction = place_of(seen)
    return next(line for start, end, line in code.co_lines() if start <= instruction < end)
