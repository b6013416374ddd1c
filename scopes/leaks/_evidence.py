"""What the log of births says of the growth of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from ._growth import PASSES_AT_LEAST, trend_of, trend_of_births
from ._log import LOG
from ._sightings import Birth
from ._trend import Trend

__all__ = ["HANDED_OVER", "STEP", "Evidence"]

STEP: Final = "optimizer step"
HANDED_OVER: Final = "handed over to the parent"
"""The names of passes that nobody asked for: they count where there are no others."""

_NAMES: Final = 8


@final
class Evidence:
    """The growth of the lines of one log, each asked for once.

    Parameters
    ----------
    after : int
        The number of the last birth before the detector was opened.
    """

    def __init__(self, after: int) -> None:
        passes: dict[str, int] = LOG.passes()
        often = sorted(passes.items(), key=lambda item: -item[1])
        names = [name for name, times in often if times >= PASSES_AT_LEAST]
        self._names = ([name for name in names if name not in (STEP, HANDED_OVER)] or names)[:_NAMES]
        self._after = after
        self._last: int = LOG.counts()[0] - after
        self._known: dict[int, Trend | None] = {}

    @property
    def watched_passes(self) -> bool:
        """Whether there were passes enough to see what grows over them."""
        return bool(self._names)

    def watched(self, births: Sequence[Birth]) -> bool:
        """Whether the scopes of some births were passed often enough for that, by their names."""
        return bool(self._names) and all(not birth.scope or birth.scope in self._names for birth in births)

    def trend_of(self, births: Sequence[Birth], sizes: Sequence[int]) -> Trend | None:
        """How a line grows, or None where it does not.

        Parameters
        ----------
        births : sequence of Birth
            The births of what is there of one line.
        sizes : sequence of int
            The bytes of each.
        """
        if not births:
            return None
        if not self._names:
            made: int = LOG.site(births[0].site_number)[4]
            rows = sorted(zip((birth.number - self._after for birth in births), sizes, strict=True))
            return trend_of_births([number for number, _ in rows], [nbytes for _, nbytes in rows], made, self._last)
        number = births[0].site_number
        if number not in self._known:
            found = [trend for name in self._names if (trend := trend_of(LOG.series(number, name))) is not None]
            self._known[number] = max(found, key=lambda trend: trend.fit, default=None)
        return self._known[number]
