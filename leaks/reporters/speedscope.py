"""Write a report as flame graphs of bytes for speedscope (https://www.speedscope.app)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from ...scopes.base.sites import Site
from ..report.report import Report

__all__ = [
    "speedscope_of",
]

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def speedscope_of(report: Report, name: str) -> str:
    """Return three profiles for speedscope: live, leaked and peak bytes by line and its callers.

    The format is that of https://www.speedscope.app/file-format-schema.json. A stack has as many
    callers as the detector kept (``--frames``).

    Parameters
    ----------
    report : Report
        The report.
    name : str
        The title in the viewer.
    """
    numbers: dict[Site | None, int] = {}
    profiles = [
        _profile("live bytes", [(row.site, row.frames, row.nbytes) for row in report.sites], numbers),
        _profile("leaked bytes", [(leak.site, leak.frames, leak.nbytes) for leak in report.leaks], numbers),
        _profile("peak bytes", [(row.site, row.frames, row.peak_nbytes) for row in report.sites], numbers),
    ]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "name": name,
            "exporter": "disposescope",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(site) for site in numbers]},
            "profiles": profiles,
        }
    )


def _profile(
    name: str, rows: Iterable[tuple[Site | None, tuple[Site, ...], int]], numbers: dict[Site | None, int]
) -> dict[str, object]:
    samples: list[list[int]] = []
    weights: list[int] = []
    for site, frames, nbytes in rows:
        if nbytes > 0:
            # A report has the innermost frame first, speedscope the outermost.
            stack = (site,) if site is None or not frames else tuple(reversed(frames))
            samples.append([numbers.setdefault(frame, len(numbers)) for frame in stack])
            weights.append(nbytes)
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(site: Site | None) -> dict[str, object]:
    if site is None:
        return {"name": "unknown site"}
    return {"name": f"{site.function} (line {site.line})", "file": site.file, "line": site.line}
