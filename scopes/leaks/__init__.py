"""Leaks: which line made it, and who still holds it."""

from ._assertion import assert_no_leaks
from ._comparison import Comparison, Growth
from ._detector import LeakDetector, live_tensors, take_snapshot
from ._records import Record
from ._report import Group, Report
from ._site import Site
from ._snapshot import Snapshot

__all__ = [
    "Comparison",
    "Group",
    "Growth",
    "LeakDetector",
    "Record",
    "Report",
    "Site",
    "Snapshot",
    "assert_no_leaks",
    "live_tensors",
    "take_snapshot",
]
