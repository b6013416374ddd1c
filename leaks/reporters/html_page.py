"""Write a report as one self-contained HTML file, with its data inside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, final

from ...scopes.base.sites import Site
from ..report.leaks import Excerpt, Leak, Trend
from ..report.live import LiveSite
from ..report.records import Record
from ..report.report import Report, headline_of, held_by
from ..report.retainer import Retainer
from .codec import encoded

__all__ = [
    "LEAK_FIELDS",
    "RECORD_FIELDS",
    "RETAINER_FIELDS",
    "SITE_FIELDS",
    "html_of",
    "is_page",
    "packed",
    "title_of",
]

# A report packed for a web page: every text once, every site once, rows instead of objects.


# The order of the items in the arrays of `packed`: the script of the page reads it from "fields".
LEAK_FIELDS: Final = (
    "kind",
    "sure",
    "tensor",
    "device",
    "count",
    "nbytes",
    "used_nbytes",
    "graph_nbytes",
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
    "held_by",
    "holders",
    "carriers",
    "members",
    "explanation",
    "fingerprint",
    "pid",
    "rank",
    "excerpt",
    "records",
    "known",
)
RECORD_FIELDS: Final = ("tensor", "nbytes", "used_nbytes", "scope", "age_s", "generation", "disposal")
SITE_FIELDS: Final = ("site", "frames", "kind", "device", "count", "nbytes", "peak_nbytes", "births")
RETAINER_FIELDS: Final = ("holder", "text", "count", "nbytes", "sites")


def packed(report: Report) -> dict[str, Any]:
    """Return the report as data for the script of the page.

    A text is an index into ``"strings"``. A site is an index into ``"places"``, whose items are
    file, line and function. Leaks, records, live sites and retainers are arrays in the order of
    ``"fields"``.

    Parameters
    ----------
    report : Report
        The report.
    """
    packing = _Packing()
    content = {
        "program": encoded(report.program),
        "settings": encoded(report.settings),
        "verdict": report.verdict,
        "headline": headline_of(report),
        "undecided": report.undecided,
        "count": report.count,
        "nbytes": report.nbytes,
        "fields": {"leak": LEAK_FIELDS, "record": RECORD_FIELDS, "site": SITE_FIELDS, "retainer": RETAINER_FIELDS},
        "leaks": [packing.leak(leak) for leak in report.leaks],
        "kept": [packing.leak(leak) for leak in report.kept],
        "leftovers": [packing.leak(leak) for leak in report.leftovers],
        "suppressed": [[packing.leak(row.leak), packing.text(row.reason)] for row in report.suppressed],
        "unused_suppressions": encoded(report.unused_suppressions),
        "sites": [packing.live_site(row) for row in report.sites],
        "retainers": [packing.retainer(row) for row in report.retainers],
        "timeline": encoded(report.timeline),
        "processes": encoded(report.processes),
        "peak": encoded(report.peak),
    }
    return {**content, "strings": list(packing.strings), "places": packing.places}


@final
class _Packing:
    """Packs the parts of a report, and collects the texts and sites of the page.

    Attributes
    ----------
    strings : dict
        The texts, each with its index.
    places : list of (int, int, int)
        The sites: the index of the file, the line, and the index of the function.
    """

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
            leak.graph_nbytes,
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
            self.texts(tuple(held_by(leak))),
            self.texts(leak.holders),
            self.texts(leak.carriers),
            self.texts(leak.members),
            self.text(leak.explanation),
            self.text(leak.fingerprint),
            leak.pid,
            leak.rank,
            self.excerpt(leak.excerpt),
            [self.record(record) for record in leak.records],
            encoded(leak.known),
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

    def retainer(self, row: Retainer) -> list[object]:
        holder = self.text(row.holder.removeprefix("module __main__."))
        return [holder, self.text(str(row)), row.count, row.nbytes, [self.place(site) for site in row.sites]]


def _trend(trend: Trend | None) -> object:
    return None if trend is None else encoded(trend)


# The report as one self-contained HTML file: data, script, style and charts are in it.


_SCRIPT_PARTS: Final = ("data", "format", "charts", "timeline", "peak", "treemap", "detail", "table", "page")
"""The files of the script, in the order in which they need one another."""
_LICENCES: Final = ("echarts.LICENSE", "echarts.NOTICE", "d3.LICENSE", "zrender.LICENSE", "tslib.LICENSE")
_LIBRARY_VERSION: Final = "6.1.0"
"""The version of ECharts, which draws the charts."""

_GENERATOR_TAG: Final = '<meta name="generator" content="disposescope leak-report">'
"""The element by which a page is recognised."""
_HEAD_CHARACTERS: Final = 2_000
"""The element is looked for in so many characters at the beginning of a file."""

_SCRIPT: Final = """
(() => {{
"use strict";
try {{
{parts}
}} catch (error) {{
  const notice = document.getElementById("broken");
  notice.textContent = `This page cannot be shown: ${{error}}. The file may be damaged: make it anew.`;
  notice.hidden = false;
  throw error;
}}
}})();
"""


def html_of(report: Report, title: str | None = None) -> str:
    """Return the report as an HTML page of about 750 kB, most of it the chart library.

    The page loads nothing and sends nothing: its content security policy forbids both, and allows
    only the scripts in it, by their hashes. The texts of the report (paths, source, messages of
    exceptions) are in it as data, and the script puts them into text nodes.

    Parameters
    ----------
    report : Report
        The report.
    title : str, optional
        The heading; by default the command line of the program.
    """
    scripts = _scripts()
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    values = {
        "policy": policy,
        "title": _escaped(title_of(report) if title is None else title),
        "style": _read("page.css"),
        "data": _data(packed(report)),
        "library_version": _LIBRARY_VERSION,
        "licences": _licences(),
        **scripts,
    }
    # In one pass, so that placeholders in the filled in text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _read("page.html"))


def is_page(file: Path) -> bool:
    """Return whether a file looks like a page that `html_of` made, by its first characters."""
    try:
        with file.open(encoding="utf-8") as stream:
            return _GENERATOR_TAG in stream.read(_HEAD_CHARACTERS)
    except (OSError, UnicodeDecodeError):
        return False


def title_of(report: Report) -> str:
    """Return the command line of the program, or a description if there was none."""
    argv = report.program.argv
    words = ("-m", *argv) if report.program.module else argv
    return shlex.join(("python", *words)) if argv and argv != ("",) else "an interactive session"


@lru_cache(maxsize=1)
def _scripts() -> dict[str, str]:
    parts = "\n".join(_read(f"{part}.js") for part in _SCRIPT_PARTS)
    scripts = {
        "theme": _read("theme.js"),
        "library": _read("vendor/echarts.min.js"),
        "script": _SCRIPT.format(parts=parts),
    }
    for name, text in scripts.items():
        if "</script" in text.lower() or "<!--" in text:
            raise ValueError(f"the script {name!r} would end its element")
    return scripts


@lru_cache(maxsize=1)
def _licences() -> str:
    texts = "\n\n".join(f"==== {name}\n\n{_read(f'vendor/{name}').strip()}" for name in _LICENCES)
    # Two hyphens could end an HTML comment.
    return texts.replace("--", "- -")


@lru_cache(maxsize=32)
def _read(name: str) -> str:
    return (files(__name__.rpartition(".")[0]) / "html" / name).read_text(encoding="utf-8")


def _data(content: object) -> str:
    """Return JSON that can be put into a script element.

    It is ASCII without ``<``, with which ``</script>`` and ``<!--`` begin.
    """
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _escaped(text: str) -> str:
    # The name of a file may have bytes that are no text, which UTF-8 cannot encode: replace them.
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
