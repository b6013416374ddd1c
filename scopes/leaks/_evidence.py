"""What the log of births says of the growth of a line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

from ._births import Births
from ._growth import PASSES_AT_LEAST, trend_of, trend_of_births
from ._log import LOG
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

    def watched(self, births: Births) -> bool:
        """Whether the scopes of some births were passed often enough for that, by their names."""
        return bool(self._names) and all(not scope or scope in self._names for scope in births.scopes())

    def trend_of(self, births: Births, sizes: Sequence[int]) -> Trend | None:
        """How a line grows, or None where it does not.

        Parameters
        ----------
        births : Births
            The births of what is there of one line.
        sizes : sequence of int
            The bytes of each.
        """
        site = births.site_number
        if site is None:
            return None
        if not self._names:
            numbers = births.numbers(self._after)
            if any(after < before for before, after in pairwise(numbers)):
                # The records were ordered otherwise.
                rows = sorted(zip(numbers, sizes, strict=True))
                numbers, sizes = [number for number, _ in rows], [nbytes for _, nbytes in rows]
            return trend_of_births(numbers, sizes, births.made, self._last)
        if site not in self._known:
            # What the log has forgotten meanwhile, and knows something else by that number now, shows no growth.
            names = self._names if births.is_known_still else ()
            found = [trend for name in names if (trend := trend_of(LOG.series(site, name))) is not None]
            self._known[site] = max(found, key=lambda trend: trend.fit, default=None)
        return self._known[site]
