"""PyTorch: which tensors a scope owns, their disposal, their graphs, and what a detector sees.

This file registers PyTorch as a framework of scopes, and imports nothing of PyTorch. Then read
`framework`, `adapter`, `births`, `disposal`, `exclusions`, and ``graphs/`` for autograd. The
compiled part is in ``src/``: begin with ``compiled.h``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from ...scopes.base.process import PATCHES, when_imported
from ...scopes.framework import Framework, register_lazily
from ...scopes.scope import DisposeScope
from ..patches import TORCH_DISPOSAL, TORCH_GRAPH_BREAKS

__all__ = [
    "load",
]


@cache
def load() -> Framework | None:
    """Return PyTorch as a framework; None, with a warning, if its tensors cannot be disposed."""
    try:
        from .adapter import check_disposal
        from .framework import TorchFramework

        check_disposal()
    except Exception as error:
        # The private functions that are used here change from version to version.
        PATCHES.fail(TORCH_DISPOSAL, f"{type(error).__name__}: {error}")
        return None
    return TorchFramework()


def _break_graphs(trace_rules: Any) -> None:
    """Make Dynamo break its graph at calls of scopes, so that the calls are not traced.

    A traced scope would be entered when the function is compiled. The package is skipped. But
    functions of ``tensors`` are inlined when traced code calls them, because they wrap functions of
    PyTorch that Dynamo traces through.
    """
    skipped: list[str] = []
    inlined = os.path.dirname(os.path.dirname(__file__)) + os.sep
    # Older releases have only the set of their own folders, which is made once. Without any set,
    # the wrapped functions break the graph.
    folders: Callable[[], set[str]] = getattr(trace_rules, "get_mod_inlinelist", set[str])
    when_called: set[str] = getattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED", None) or folders()
    # Before 2.10 Dynamo traces into the constructor of a scope, and warns of compiled code there.
    refused: Any = getattr(trace_rules, "_disallowed_callable_ids", None)

    def skip() -> bool:
        unskip()
        if not all(hasattr(trace_rules, name) for name in ("add", "SKIP_DIRS", "_recompile_re")):
            return False
        package = __name__.rsplit(".", 2)[0]
        before = len(trace_rules.SKIP_DIRS)
        for room in ("scopes", "leaks", "tensors"):
            trace_rules.add(f"{package}.{room}")
        skipped[:] = trace_rules.SKIP_DIRS[before:]
        when_called.add(inlined)
        if refused is not None:
            refused.add(id(DisposeScope))
        return True

    def unskip() -> None:
        if skipped:
            for folder in skipped:
                trace_rules.SKIP_DIRS.remove(folder)
            skipped.clear()
            trace_rules._recompile_re()
        when_called.discard(inlined)
        if refused is not None:
            refused.remove(id(DisposeScope))

    PATCHES.change(TORCH_GRAPH_BREAKS, skip, unskip)


register_lazily("torch", load)
# At the end of the import, because the first scope may be entered in a function that is being
# compiled.
when_imported("torch._dynamo.trace_rules", _break_graphs)
