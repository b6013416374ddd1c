"""Programs that PyTorch makes of code by running it: what it makes meanwhile belongs to the program, and is not born.

``torch.export`` and ``make_fx`` run the user's own code with stand-ins for tensors. They keep these as notes in the
graph, and the real tensors that the code makes as constants of the program, which is used after the scope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import _getframe
from typing import Any, Final

from ._torch_imports import when_imported
from ._torch_modes import LOCAL, is_looked_at, pause_births, resume_after_a_failed_step, resume_births

__all__ = ["watch_traces", "without_births"]

_SEAMS: Final = (
    ("torch.export._trace", None, "_export"),
    ("torch.export.exported_program", "ExportedProgram", "module"),
    ("torch.export.exported_program", "ExportedProgram", "run_decompositions"),
    ("torch.export.unflatten", None, "unflatten"),
    ("torch.export.pt2_archive._package", None, "load_pt2"),
    ("torch.fx.experimental.proxy_tensor", "_MakefxTracer", "trace"),
)


def watch_traces() -> None:
    """Let no scope own what is made while code is traced, from now on."""
    for module_name, owner, name in _SEAMS:
        when_imported(module_name, functools.partial(_watch, owner, name))


def _watch(owner: str | None, name: str, module: Any) -> None:
    holder = module if owner is None else getattr(module, owner)
    setattr(holder, name, without_births(getattr(holder, name)))


def without_births(trace: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, by whose calls nothing is born."""

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        here = LOCAL.here
        if here.stepping:
            resume_after_a_failed_step(here)
        if here.stepping or not is_looked_at(here):
            return trace(*args, **kwargs)
        reason = id(_getframe())
        pause_births(reason)
        try:
            return trace(*args, **kwargs)
        finally:
            resume_births(here, reason)

    return traced
