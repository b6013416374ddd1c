"""Block-structured lives for tensors: what is born in a scope is released at its end.

Examples
--------
>>> import disposescope as ds
>>> with ds.dispose_scope() as scope:
...     total = scope.move_to_outer((ds.arange(4) * 2).sum())
>>> int(total)
12
"""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from os import environ as _environ

from .leaks import LeakDetector, Record, Snapshot, assert_no_leaks, live_tensors, take_snapshot
from .scopes import (
    ArenaUse,
    DeviceMismatchError,
    DeviceStatistics,
    DisposedError,
    DisposeScope,
    DisposeScopeError,
    EscapedError,
    GraphRetainedError,
    LeakError,
    LeakWarning,
    NotOwnedError,
    ScopeClosedError,
    ScopeNestingError,
    Statistics,
    UnknownKindError,
    attach,
    current_scope,
    detach,
    dispose,
    dispose_scope,
    is_disposed,
    move_to_outer,
    owner_of,
    register_kind,
    reset_statistics,
    statistics,
    tidy,
)
from .sequences import (
    PackedSequence,
    ScopedCollate,
    pack_collate,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    scoped_batches,
    unpack_sequence,
    unpad_sequence,
)
from .tensors import (
    ArenaStatistics,
    ExportedStorage,
    GraphOp,
    GraphSummary,
    Tensor,
    arange,
    arena_statistics,
    asarray,
    empty,
    empty_cache,
    exported_storages,
    from_dlpack,
    full,
    graph_nbytes,
    graph_summary,
    ones,
    tensor,
    zeros,
)

try:
    __version__ = _version("disposescope")
except _NotInstalled:  # a checkout that is used as it is
    __version__ = "0+unknown"

__all__ = [
    "ArenaStatistics",
    "ArenaUse",
    "DeviceMismatchError",
    "DeviceStatistics",
    "DisposeScope",
    "DisposeScopeError",
    "DisposedError",
    "EscapedError",
    "ExportedStorage",
    "GraphOp",
    "GraphRetainedError",
    "GraphSummary",
    "LeakDetector",
    "LeakError",
    "LeakWarning",
    "NotOwnedError",
    "PackedSequence",
    "Record",
    "ScopeClosedError",
    "ScopeNestingError",
    "ScopedCollate",
    "Snapshot",
    "Statistics",
    "Tensor",
    "UnknownKindError",
    "arange",
    "arena_statistics",
    "asarray",
    "assert_no_leaks",
    "attach",
    "current_scope",
    "detach",
    "dispose",
    "dispose_scope",
    "empty",
    "empty_cache",
    "exported_storages",
    "from_dlpack",
    "full",
    "graph_nbytes",
    "graph_summary",
    "is_disposed",
    "live_tensors",
    "move_to_outer",
    "ones",
    "owner_of",
    "pack_collate",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "register_kind",
    "reset_statistics",
    "scoped_batches",
    "statistics",
    "take_snapshot",
    "tensor",
    "tidy",
    "unpack_sequence",
    "unpad_sequence",
    "zeros",
]

if _environ.get("PYTHONDISPOSESCOPE"):
    from .leaks.running.environment import obey_environment as _obey_environment

    _obey_environment()
