"""What is the same for all births of a site, in words."""

from __future__ import annotations

from typing import NamedTuple, final

from ._log import LOG
from ._site import Mark, Site, site_of

__all__ = ["SiteFacts", "Sites"]


class SiteFacts(NamedTuple):
    """What is known of a site.

    Attributes
    ----------
    site : Site or None
        The line, where there is one.
    frames : tuple of Site
        That line and those that led to it, innermost first.
    kind, device : str
        What is born there, and where.
    op : str or None
        The call that makes it, where that is known.
    made : int
        How many were born there when this was asked.
    """

    site: Site | None
    frames: tuple[Site, ...]
    kind: str
    device: str
    op: str | None
    made: int


@final
class Sites:
    """The facts of sites, each asked of the log once."""

    __slots__ = ("_known", "_lines")

    def __init__(self) -> None:
        self._known: dict[int, SiteFacts] = {}
        self._lines: dict[Mark, Site | None] = {}

    def __call__(self, number: int) -> SiteFacts:
        """The facts of the site of a number."""
        facts = self._known.get(number)
        if facts is None:
            kind, device, op, places, made, *_ = LOG.site(number)
            frames = tuple(site for place in places if (site := self.line(place)) is not None)
            facts = SiteFacts(frames[0] if frames else None, frames, kind, device, op, made)
            self._known[number] = facts
        return facts

    def line(self, mark: Mark | None) -> Site | None:
        """The line of a place; the same object for the same place."""
        if mark is None:
            return None
        try:
            return self._lines[mark]
        except KeyError:
            site = self._lines[mark] = site_of(mark)
            return site
