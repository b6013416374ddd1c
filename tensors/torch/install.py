"""Says what to do once the program has PyTorch. Imports nothing of it."""

from __future__ import annotations

import os
from typing import Any

from ...scopes.kinds import await_module
from .import_hook import when_imported

__all__ = [
    "install",
]


def install() -> None:
    """Teach the scopes PyTorch. Called once, when a scope is entered after the program has imported ``torch``."""
    from .adapter import teach

    teach()


def _break_graphs(trace_rules: Any) -> None:
    """Have Dynamo break its graph where a compiled function calls a scope, and run the call as it is.

    Traced, a scope would be entered when the function is compiled. This room is passed over where it is called by code
    that is not traced, and only there: parts of it stand in functions of PyTorch that Dynamo traces through.
    """
    package = __name__.rsplit(".", 3)[0]
    for room in ("scopes", "leaks", "tensors"):
        trace_rules.add(f"{package}.{room}")
    # Where a version of PyTorch has no such set, those functions break the graph.
    getattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED", set[str]()).add(
        os.path.dirname(os.path.dirname(__file__)) + os.sep
    )


await_module("torch", install)
# Not when a scope is entered: the first one may be inside of a function that is being compiled.
when_imported("torch._dynamo.trace_rules", _break_graphs)
