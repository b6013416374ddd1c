"""Leaks: which line made it, and who still holds it."""

from ._assertion import assert_no_leaks
from ._comparison import Comparison, Growth
from ._detector import LeakDetector, live_tensors, take_snapshot
from ._facts import Process, ProgramFacts, Settings
from ._leak import Excerpt, Leak
from ._live import LiveSite
from ._records import Record
from ._report import Report, Suppressed, UnusedSuppression
from ._site import Site
from ._snapshot import Snapshot
from ._timeline import Band, Pass, Sample, Timeline
from ._trend import Trend

__all__ = [
    "Band",
    "Comparison",
    "Excerpt",
    "Growth",
    "Leak",
    "LeakDetector",
    "LiveSite",
    "Pass",
    "Process",
    "ProgramFacts",
    "Record",
    "Report",
    "Sample",
    "Settings",
    "Site",
    "Snapshot",
    "Suppressed",
    "Timeline",
    "Trend",
    "UnusedSuppression",
    "assert_no_leaks",
    "live_tensors",
    "take_snapshot",
]
