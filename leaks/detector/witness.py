"""Birth lines and holders of held resources, for the error of a scope with ``escapes="raise"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from ...scopes.base.sites import site_of
from ..births.log import LOG
from ..holders.holders import Holders
from ..report.report import OBJECT_LIMIT
from .detector import LeakDetector
from .watching import recall

if TYPE_CHECKING:
    from ...scopes.identity import Entry

__all__ = [
    "DetectorOfScope",
]


@final
class DetectorOfScope:
    """A `scopes.context.Witness`: a detector that is open as long as the scope."""

    def __init__(self) -> None:
        self._detector = LeakDetector()
        self._detector.__enter__()

    def lines_of(self, entries: Sequence[Entry]) -> list[str]:
        """Return for each resource the line of its birth; ``""`` where that was not recorded."""
        lines: list[str] = []
        for entry in entries:
            row = recall(entry)
            places = () if row is None else LOG.site(row.site).places
            lines.append(str(site_of(places[0])) if places else "")
        return lines

    def holders_of(self, entries: Sequence[Entry]) -> list[str]:
        """Return for each resource a chain by which code reaches it; ``""`` for none."""
        with Holders([[entry] for entry in entries], object_limit=OBJECT_LIMIT) as holders:
            return [next(iter(holders.chains_of([entry])), "") for entry in entries]

    def close(self) -> None:
        """Close the detector."""
        self._detector.__exit__(None, None, None)
