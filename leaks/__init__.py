"""Leaks: which line made it, and who still holds it."""

from ..scopes.sites import Site
from .detector.detector import LeakDetector, assert_no_leaks, live_tensors, take_snapshot
from .detector.snapshot import Snapshot
from .report.leaks import Excerpt, Leak, Trend
from .report.live import LiveSite
from .report.records import Comparison, Growth, Record
from .report.report import Process, ProgramFacts, Report, Settings, Suppressed, UnusedSuppression
from .report.timeline import Band, Pass, Sample, Timeline

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
