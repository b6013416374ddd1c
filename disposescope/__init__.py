"""Block-structured lives for tensors: what is born in a scope is released at its end.

Examples
--------
>>> import disposescope as ds
>>> with ds.dispose_scope() as scope:
...     total = scope.move_to_outer((ds.arange(4) * 2).sum())
>>> int(total)
12
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any
from typing import ForwardRef as _ForwardRef

if TYPE_CHECKING:
    from . import leaks as leaks
    from .leaks.detector.detector import LeakDetector, assert_no_leaks, live_tensors, take_snapshot
    from .leaks.detector.freed import AssertFreed, WhyAlive, assert_freed, why_alive
    from .leaks.detector.snapshot import Snapshot
    from .leaks.report.peak import Advice
    from .leaks.report.records import Record
    from .planner.plan import Plan, plan
    from .scopes.base.errors import (
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
        WorkspaceError,
    )
    from .scopes.context import ArenaUse
    from .scopes.functions import (
        DeviceStatistics,
        Statistics,
        attach,
        check_alive,
        current_scope,
        detach,
        dispose,
        is_disposed,
        keep,
        move_to_outer,
        owner_of,
        reset_statistics,
        statistics,
    )
    from .scopes.keeping import keeps
    from .scopes.kinds import register_kind
    from .scopes.scope import DisposeScope, dispose_scope, tidy
    from .sequences.batches import scoped_batches
    from .sequences.collate import ScopedCollate, pack_collate
    from .sequences.pack import pack_padded_sequence, pack_sequence
    from .sequences.packed import PackedSequence
    from .sequences.pad import pad_packed_sequence, pad_sequence, unpack_sequence, unpad_sequence
    from .tensors.numpy.statistics import ArenaStatistics, arena_statistics, empty_cache
    from .tensors.tensor.constructors import arange, asarray, empty, from_dlpack, full, ones, tensor, zeros
    from .tensors.tensor.tensor import ExportedStorage, Tensor, exported_storages
    from .tensors.torch.graphs.graph import (
        GraphOp,
        GraphSummary,
        ModelAudit,
        Recorder,
        audit,
        graph_nbytes,
        graph_summary,
    )
    from .workspace.results import Peak, WorkspaceStatistics
    from .workspace.workspace import Workspace

    __version__: str

__all__ = [
    "Advice",
    "ArenaStatistics",
    "ArenaUse",
    "AssertFreed",
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
    "ModelAudit",
    "NotOwnedError",
    "PackedSequence",
    "Peak",
    "Plan",
    "Record",
    "Recorder",
    "ScopeClosedError",
    "ScopeNestingError",
    "ScopedCollate",
    "Snapshot",
    "Statistics",
    "Tensor",
    "UnknownKindError",
    "WhyAlive",
    "Workspace",
    "WorkspaceError",
    "WorkspaceStatistics",
    "arange",
    "arena_statistics",
    "asarray",
    "assert_freed",
    "assert_no_leaks",
    "attach",
    "audit",
    "check_alive",
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
    "keep",
    "keeps",
    "live_tensors",
    "move_to_outer",
    "ones",
    "owner_of",
    "pack_collate",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "plan",
    "register_kind",
    "reset_statistics",
    "scoped_batches",
    "statistics",
    "take_snapshot",
    "tensor",
    "tidy",
    "unpack_sequence",
    "unpad_sequence",
    "why_alive",
    "zeros",
]

_MODULES = {
    "leaks.detector.detector": "LeakDetector assert_no_leaks live_tensors take_snapshot",
    "leaks.detector.freed": "AssertFreed WhyAlive assert_freed why_alive",
    "leaks.detector.snapshot": "Snapshot",
    "leaks.report.peak": "Advice",
    "leaks.report.records": "Record",
    "planner.plan": "Plan plan",
    "scopes.base.errors": (
        "DeviceMismatchError DisposeScopeError DisposedError EscapedError GraphRetainedError LeakError LeakWarning "
        "NotOwnedError ScopeClosedError ScopeNestingError UnknownKindError WorkspaceError"
    ),
    "scopes.functions": (
        "DeviceStatistics Statistics attach check_alive current_scope detach dispose is_disposed keep "
        "move_to_outer owner_of reset_statistics statistics"
    ),
    "scopes.keeping": "keeps",
    "scopes.kinds": "register_kind",
    "scopes.context": "ArenaUse",
    "scopes.scope": "DisposeScope dispose_scope tidy",
    "sequences.batches": "scoped_batches",
    "sequences.collate": "ScopedCollate pack_collate",
    "sequences.pack": "pack_padded_sequence pack_sequence",
    "sequences.packed": "PackedSequence",
    "sequences.pad": "pad_packed_sequence pad_sequence unpack_sequence unpad_sequence",
    "tensors.numpy.statistics": "ArenaStatistics arena_statistics empty_cache",
    "tensors.tensor.constructors": "arange asarray empty from_dlpack full ones tensor zeros",
    "tensors.tensor.tensor": "ExportedStorage Tensor exported_storages",
    "tensors.torch.graphs.graph": "GraphOp GraphSummary ModelAudit Recorder audit graph_nbytes graph_summary",
    "workspace.results": "Peak WorkspaceStatistics",
    "workspace.workspace": "Workspace",
}
try:
    # Refuses an interpreter that is not the main one.
    _import_module(".scopes", __name__)
except ModuleNotFoundError as _error:
    if _error.name != f"{__name__}.scopes":
        raise
    # The links to the rooms are plain files in an archive that was unpacked, or in a checkout on
    # Windows.
    raise ImportError(
        f"{_os.path.dirname(__path__[0])} holds the source of disposescope, without the links of a checkout: "
        "run `pip install .` there, and start Python in another folder",
        name=__name__,
    ) from None


def _open_witness() -> _Any:
    return _import_module(".leaks.detector.witness", __name__).DetectorOfScope()


_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_ROOMS = frozenset({"leaks", "planner", "scopes", "sequences", "tensors", "workspace"})


def _bind(name: str) -> None:
    """Import a public name, and bind all public names of the modules that are loaded then."""
    from .scopes.base.process import load_frameworks
    from .scopes.context import HOOKS

    # Scopes know nothing of leak detectors; here both are known.
    HOOKS.open_witness = _open_witness
    load_frameworks()
    home = _HOMES[name]
    for module in [module for module in _MODULES if module.startswith("leaks")] if home.startswith("leaks") else [home]:
        _import_module(f".{module}", __name__)
    for public, home in _HOMES.items():
        found = getattr(_sys.modules.get(f"{__name__}.{home}"), public, None)
        if found is not None and public not in globals():
            _name_publicly(found)
            globals()[public] = found


def _name_publicly(public: _Any) -> None:
    """Have a class or function say that it is of this package, as tracebacks and pickles tell.

    `inspect.getsource` finds a function all the same, by its code. It looks for a class here, and
    finds none.
    """
    if isinstance(public, type):
        # The names in annotations are those of the module where the class is defined.
        hints = vars(public).get("__annotations__", {})
        for name, hint in hints.items():
            if isinstance(hint, str):
                hints[name] = _ForwardRef(hint, module=public.__module__, is_argument=False, is_class=True)
    public.__module__ = __name__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is used first."""
        if name in _HOMES:
            _bind(name)
        elif name in _ROOMS:
            _import_module(f".{name}", __name__)
        elif name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                globals()[name] = version("disposescope")
            except PackageNotFoundError:  # a checkout that is used as it is
                globals()[name] = "0+unknown"
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_sys.modules[__name__])

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS, "__version__"} - {"TYPE_CHECKING"})


if _os.environ.get("PYTHONDISPOSESCOPE"):
    from .leaks.running.environment import obey_environment as _obey_environment

    _obey_environment()
