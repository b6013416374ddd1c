"""A report packed for a web page: every text once, every site once, rows instead of objects."""

from __future__ import annotations

from typing import Any, Final, final

from .._leak import Excerpt, Leak
from .._live import LiveSite
from .._records import Record
from .._report import Report
from .._site import Site
from .._trend import Trend
from ._codec import encoded

__all__ = ["LEAK_FIELDS", "RECORD_FIELDS", "SITE_FIELDS", "packed"]

LEAK_FIELDS: Final = (
    "kind",
    "sure",
    "tensor",
    "device",
    "count",
    "nbytes",
    "used_nbytes",
    "site",
    "frames",
    "op",
    "state",
    "disposal",
    "scopes",
    "oldest_age_s",
    "newest_age_s",
    "generation",
    "trend",
    "holders",
    "carriers",
    "members",
    "explanation",
    "fingerprint",
    "pid",
    "excerpt",
    "records",
)
RECORD_FIELDS: Final = ("tensor", "nbytes", "used_nbytes", "scope", "age_s", "generation", "disposal")
SITE_FIELDS: Final = ("site", "frames", "kind", "device", "count", "nbytes", "peak_nbytes", "births")


def packed(report: Report) -> dict[str, Any]:
    """The report for the page's script.

    Texts are numbers into ``"strings"``, sites numbers into ``"places"``, whose items are file, line and function;
    leaks, records and live sites are arrays in the order of ``"fields"``.

    Parameters
    ----------
    report : Report
        Made from a snapshot, or read from a file.
    """
    packing = _Packing()
    content = {
        "program": encoded(report.program),
        "settings": encoded(report.settings),
        "count": report.count,
        "nbytes": report.nbytes,
        "fields": {"leak": LEAK_FIELDS, "record": RECORD_FIELDS, "site": SITE_FIELDS},
        "leaks": [packing.leak(leak) for leak in report.leaks],
        "kept": [packing.leak(leak) for leak in report.kept],
        "leftovers": [packing.leak(leak) for leak in report.leftovers],
        "suppressed": [[packing.leak(row.leak), packing.text(row.reason)] for row in report.suppressed],
        "unused_suppressions": encoded(report.unused_suppressions),
        "sites": [packing.live_site(row) for row in report.sites],
        "timeline": encoded(report.timeline),
        "processes": encoded(report.processes),
    }
    return {**content, "strings": list(packing.strings), "places": packing.places}


@final
class _Packing:
    """The texts and sites met so far, each with its number."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.places: list[tuple[int, int, int]] = []
        self._numbers: dict[Site, int] = {}

    def text(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def optional(self, text: str | None) -> int | None:
        return None if text is None else self.text(text)

    def texts(self, texts: tuple[str, ...]) -> list[int]:
        return [self.text(text) for text in texts]

    def site(self, site: Site | None) -> int | None:
        return None if site is None else self.place(site)

    def place(self, site: Site) -> int:
        number = self._numbers.get(site)
        if number is None:
            number = self._numbers[site] = len(self.places)
            self.places.append((self.text(site.file), site.line, self.text(site.function)))
        return number

    def leak(self, leak: Leak) -> list[object]:
        return [
            self.text(leak.kind),
            self.text(leak.sure),
            self.optional(leak.tensor),
            self.optional(leak.device),
            leak.count,
            leak.nbytes,
            leak.used_nbytes,
            self.site(leak.site),
            [self.place(frame) for frame in leak.frames],
            self.optional(leak.op),
            self.text(leak.state),
            self.site(leak.disposal),
            [self.optional(scope) for scope in leak.scopes],
            leak.oldest_age_s,
            leak.newest_age_s,
            leak.generation,
            _trend(leak.trend),
            self.texts(leak.holders),
            self.texts(leak.carriers),
            self.texts(leak.members),
            self.text(leak.explanation),
            self.text(leak.fingerprint),
            leak.pid,
            self.excerpt(leak.excerpt),
            [self.record(record) for record in leak.records],
        ]

    def excerpt(self, excerpt: Excerpt | None) -> dict[str, object] | None:
        if excerpt is None:
            return None
        lines = self.texts(excerpt.lines)
        return {"file": self.text(excerpt.file), "first": excerpt.first, "lines": lines, "line": excerpt.line}

    def record(self, record: Record) -> list[object]:
        return [
            self.text(str(record)),
            record.nbytes,
            record.used_nbytes,
            self.optional(record.scope),
            None if record.age_s is None else round(record.age_s, 4),
            record.generation,
            self.site(record.disposal),
        ]

    def live_site(self, row: LiveSite) -> list[object]:
        frames = [self.place(frame) for frame in row.frames]
        kind, device = self.text(row.kind), self.text(row.device)
        return [self.site(row.site), frames, kind, device, row.count, row.nbytes, row.peak_nbytes, row.births]


def _trend(trend: Trend | None) -> object:
    return None if trend is None else encoded(trend)
