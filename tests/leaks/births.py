"""What the log of births has of recorded memory."""

import pytest

import disposescope as ds
from disposescope.leaks.births.log import LOG, RecordedMemory, Row
from disposescope.scopes.base.sites import Mark

arrays_are_seen = pytest.mark.skipif(
    not ds.arena_statistics().available, reason="the arena reports plain arrays to the log"
)


def row_of(seen: RecordedMemory) -> Row:
    window = seen.number - 1, seen.number
    [row] = [*LOG.blocks(*window)[1], *LOG.recorded_memory(*window)[1]]
    return row


def op_of(seen: RecordedMemory) -> str | None:
    return LOG.site(row_of(seen).site).op


def place_of(seen: RecordedMemory) -> Mark:
    return LOG.site(row_of(seen).site).places[0]


def line_of(seen: RecordedMemory) -> int:
    """The line of user code at which it was born."""
    code, instruction = place_of(seen)
    return next(line for start, end, line in code.co_lines() if start <= instruction < end)
