"""The report as one HTML file that needs nothing else: its data, its script, its style and its charts are in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from functools import lru_cache
from importlib.resources import files
from typing import Final

from .._report import Report
from ._packing import packed

__all__ = ["html_of", "title_of"]

_PARTS: Final = ("data", "format", "charts", "timeline", "treemap", "detail", "table", "page")
_LICENCES: Final = ("echarts.LICENSE", "echarts.NOTICE", "d3.LICENSE", "zrender.LICENSE", "tslib.LICENSE")
_LIBRARY_VERSION: Final = "6.1.0"

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
    """The report as an HTML page of about 750 kB, most of which is the library that draws its charts.

    The page loads nothing and sends nothing: its content security policy forbids both, and allows only the scripts in
    it, by their hashes. What the report says (paths, source, texts of exceptions) goes into it as data, and from there
    into text nodes.

    Parameters
    ----------
    report : Report
        Made from a snapshot, or read from a file.
    title : str, optional
        The heading. The program's command line where left out.
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
    # In one pass: what is filled in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _read("page.html"))


def title_of(report: Report) -> str:
    """The command line of the program, or what stands for it where there was none."""
    argv = report.program.argv
    words = ("-m", *argv) if report.program.module else argv
    return shlex.join(("python", *words)) if argv and argv != ("",) else "an interactive session"


@lru_cache(maxsize=1)
def _scripts() -> dict[str, str]:
    parts = "\n".join(_read(f"{part}.js") for part in _PARTS)
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
    # Two hyphens may end a comment.
    return texts.replace("--", "- -")


@lru_cache(maxsize=32)
def _read(name: str) -> str:
    return (files(__name__.rpartition(".")[0]) / "html" / name).read_text(encoding="utf-8")


def _data(content: object) -> str:
    """JSON that may stand in a script element: without ``<``, of which ``</script>`` and ``<!--`` begin; all ASCII."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _escaped(text: str) -> str:
    # What is no text (the bytes of a name that could not be decoded) is shown as such.
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
