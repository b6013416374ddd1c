"""Scopes: blocks of code that own what is born in them. This floor knows no tensor: it knows kinds."""

from .context import current_scope
from .errors import (
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
from .functions import attach, detach, dispose, is_disposed, move_to_outer, owner_of, reset_statistics, statistics
from .kinds import register_kind
from .plain_memory import ArenaUse
from .scope import DisposeScope, tidy
from .statistics import DeviceStatistics, Statistics

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
