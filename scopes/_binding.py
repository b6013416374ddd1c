"""The compiled hot paths get to know the Python part: its tables, lists, functions, and the slots of its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _arrivals, _current, _deaths, _entry, _estates, _instruments, _memory, _releases
from ._compiled import HOT
from ._kinds import ANCHORED, Kind
from ._scope_view import ScopeView
from ._statistics import LOCAL, Ledger

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["quicken"]


def quicken(scope_type: type[DisposeScope]) -> None:
    """Bind the compiled hot paths, and give the class of scopes its compiled methods; nothing where there are none."""
    if HOT is None:
        return
    HOT.bind(
        {
            "ANCHORED": ANCHORED,
            "AnchoredEntry": _entry.AnchoredEntry,
            "AWAITED": _arrivals.AWAITED,
            "CURRENT": _current.CURRENT,
            "DEAD": _entry.DEAD,
            "ENTERED": _instruments.ENTERED,
            "ENTERING": _current.ENTERING,
            "ESTATES": _estates.ESTATES,
            "Entry": _entry.Entry,
            "Kind": Kind,
            "LEFT": _instruments.LEFT,
            "LISTENERS": _instruments.LISTENERS,
            "LIVE": _entry.LIVE,
            "LOCAL": LOCAL,
            "Ledger": Ledger,
            "MEMORY": _memory.MEMORY,
            "SHARED": _estates.SHARED,
            "ScopeView": ScopeView,
            "modules_seen": _arrivals.modules_seen,
            "part_died": _deaths.part_died,
            "release": _releases.release_in_python,
            "resolve": _current.resolve,
            "settle": _estates.settle_earlier,
        }
    )
    HOT.quicken(scope_type)
