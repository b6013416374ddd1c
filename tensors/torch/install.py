"""PyTorch as a framework of scopes. Imports nothing of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from ...scopes.framework import Framework, register
from ...scopes.kinds import Kind, when_imported

__all__ = [
    "TorchFramework",
]


@final
class TorchFramework(Framework):
    """PyTorch. The modules of this room that import it are imported when the program has."""

    module = "torch"

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of ``torch.Tensor`` and of its subclasses."""
        from .adapter import KIND

        return [KIND]

    @property
    def current_indices(self) -> Mapping[str, Callable[[], int]]:
        """The CUDA device that is current."""
        from .adapter import current_cuda_index

        return {"cuda": current_cuda_index}

    def install(self) -> None:
        """See births, and leave what models own to them, from now on."""
        from .adapter import install

        # Compiled functions, called as they are.
        self.scope_entered, self.scope_left = install()  # type: ignore[method-assign]  # of this one instance


def _break_graphs(trace_rules: Any) -> None:
    """Have Dynamo break its graph where a compiled function calls a scope, and run the call as it is.

    Traced, a scope would be entered when the function is compiled. This room is passed over where
    it is called by code that is not traced, and only there: parts of it stand in functions of
    PyTorch that Dynamo traces through.
    """
    package = __name__.rsplit(".", 3)[0]
    for room in ("scopes", "leaks", "tensors"):
        trace_rules.add(f"{package}.{room}")
    # Where a version of PyTorch has no such set, those functions break the graph.
    getattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED", set[str]()).add(
        os.path.dirname(os.path.dirname(__file__)) + os.sep
    )


register(TorchFramework())
# Not when a scope is entered: the first one may be inside of a function that is being compiled.
when_imported("torch._dynamo.trace_rules", _break_graphs)
