"""Counting the strong references to a resource."""

from __future__ import annotations

import sys
from typing import Final

from .._entry import Entry, StrongEntry

__all__ = ["references_to"]


def references_to(entry: Entry) -> int:
    """How many strong references there are to a resource."""
    return max(0, _count(entry) - _OWN_REFERENCES - (type(entry) is StrongEntry))


def _count(entry: Entry) -> int:
    resource = entry()
    return 0 if resource is None else sys.getrefcount(resource)


class _Probe:
    __slots__ = ("__weakref__",)


def _measure_own_references() -> int:
    # How many of the references that getrefcount sees are its caller's depends on the interpreter: it is measured.
    probe = _Probe()
    held = [probe]
    entry = Entry(probe)
    del probe
    return _count(entry) - len(held)


_OWN_REFERENCES: Final = _measure_own_references()
