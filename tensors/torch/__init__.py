"""PyTorch: which tensors a scope owns, their disposal, their graphs, and what a detector sees.

This file has PyTorch installed as a framework of scopes, and imports nothing of it. Read then
`framework`, `adapter`, `births`, `disposal`, `exclusions`; then ``graphs/`` for autograd. The
compiled part is in ``src/``, where ``compiled.h`` says which file has what.
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
    """Return PyTorch as a framework; None, with a warning, where its tensors cannot be disposed."""
    try:
        from .adapter import check_disposal
        from .framework import TorchFramework

        check_disposal()
    except Exception as error:
        # What is not in its public interface is another in each version.
        PATCHES.fail(TORCH_DISPOSAL, f"{type(error).__name__}: {error}")
        return None
    return TorchFramework()


def _break_graphs(trace_rules: Any) -> None:
    """Have Dynamo break its graph where compiled code calls a scope, and run the call as it is.

    Traced, a scope would be entered when the function is compiled. This room is passed over where
    it is called by code that is not traced, and only there: parts of it stand in functions of
    PyTorch that Dynamo traces through.
    """
    skipped: list[str] = []
    inlined = os.path.dirname(os.path.dirname(__file__)) + os.sep
    # Earlier releases have the set of their own folders alone, which is made once. Where there is
    # none, those functions break the graph.
    folders: Callable[[], set[str]] = getattr(trace_rules, "get_mod_inlinelist", set[str])
    when_called: set[str] = getattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED", None) or folders()
    # Before 2.10 Dynamo traces into the making of a scope, and warns that it meets compiled code.
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
# Not when a scope is entered: the first one may be inside of a function that is being compiled.
when_imported("torch._dynamo.trace_rules", _break_graphs)
