"""Scopes: blocks of code that own what is born in them. This floor knows no tensor: it knows kinds."""

from ._current import current_scope
from ._errors import (
    DeviceMismatchError,
    DisposedError,
    DisposeScopeError,
    EscapedError,
    GraphRetainedError,
    LeakError,
    LeakWarning,
    NotOwnedError,
    ScopeClosedError,
    ScopeNestingError,
    UnknownKindError,
)
from ._kinds import register_kind
from ._memory import ArenaUse
from ._scope import DisposeScope
from ._statistics import DeviceStatistics, Statistics
from ._tidy import tidy
from ._verbs import attach, detach, dispose, is_disposed, move_to_outer, owner_of, reset_statistics, statistics

dispose_scope = DisposeScope

__all__ = [
    "ArenaUse",
    "DeviceMismatchError",
    "DeviceStatistics",
    "DisposeScope",
    "DisposeScopeError",
    "DisposedError",
    "EscapedError",
    "GraphRetainedError",
    "LeakError",
    "LeakWarning",
    "NotOwnedError",
    "ScopeClosedError",
    "ScopeNestingError",
    "Statistics",
    "UnknownKindError",
    "attach",
    "current_scope",
    "detach",
    "dispose",
    "dispose_scope",
    "is_disposed",
    "move_to_outer",
    "owner_of",
    "register_kind",
    "reset_statistics",
    "statistics",
    "tidy",
]
