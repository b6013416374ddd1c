"""Leaks of what is no tensor: a scope that is not closed, memory of nobody."""

from __future__ import annotations

import os

from ._excerpts import excerpt_of
from ._leak import Leak, LeakKind, Sureness, fingerprint_of
from ._site import Site
from ._trend import Trend

__all__ = ["leak_without_tensor"]


def leak_without_tensor(
    kind: LeakKind,
    sure: Sureness,
    nbytes: int,
    explanation: str,
    *,
    site: Site | None = None,
    scopes: tuple[str | None, ...] = (),
    age_s: float | None = None,
    trend: Trend | None = None,
) -> Leak:
    """One thing that is there and should not be; told apart from others by its line and the name of its scope."""
    return Leak(
        kind=kind,
        sure=sure,
        tensor=None,
        tensor_kind=None,
        device=None,
        count=1,
        nbytes=nbytes,
        used_nbytes=nbytes,
        site=site,
        frames=() if site is None else (site,),
        op=None,
        state="alive",
        disposal=None,
        scopes=scopes,
        oldest_age_s=age_s,
        newest_age_s=None,
        generation=None,
        trend=trend,
        holders=(),
        carriers=(),
        members=(),
        explanation=explanation,
        fingerprint=fingerprint_of(kind, None, site, scopes[0] if scopes else None),
        pid=os.getpid(),
        excerpt=excerpt_of(site),
        records=(),
    )
