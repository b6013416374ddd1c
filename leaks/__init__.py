"""Find leaks: which line made a tensor, and what still holds it.

The names of reports are public here, and imported when they are used first.
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..scopes.base.sites import Site
    from .detector.detector import LeakDetector, assert_no_leaks, live_tensors, take_snapshot
    from .detector.snapshot import Snapshot
    from .report.leaks import Excerpt, KnownLeak, Leak, Trend
    from .report.live import LiveSite
    from .report.records import Comparison, Growth, Record
    from .report.report import Process, ProgramFacts, Report, Settings, Suppressed, UnusedSuppression
    from .report.retainer import Retainer
    from .report.timeline import Band, Pass, Sample, Timeline

__all__ = [
    "Band",
    "Comparison",
    "Excerpt",
    "Growth",
    "KnownLeak",
    "Leak",
    "LeakDetector",
    "LiveSite",
    "Pass",
    "Process",
    "ProgramFacts",
    "Record",
    "Report",
    "Retainer",
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
_MODULES = {
    "..scopes.base.sites": "Site",
    ".detector.detector": "LeakDetector assert_no_leaks live_tensors take_snapshot",
    ".detector.snapshot": "Snapshot",
    ".report.leaks": "Excerpt KnownLeak Leak Trend",
    ".report.live": "LiveSite",
    ".report.records": "Comparison Growth Record",
    ".report.report": "Process ProgramFacts Report Settings Suppressed UnusedSuppression",
    ".report.retainer": "Retainer",
    ".report.timeline": "Band Pass Sample Timeline",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        for module, names in _MODULES.items():
            if name in names.split():
                return globals().setdefault(name, getattr(_import_module(module, __name__), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_sys.modules[__name__])

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})
