"""Batches from the workers of a DataLoader: born where they are handed over, not where they happen to arrive.

While a program waits for the next batch, later ones may arrive first. The loader keeps them, beyond the scope.
"""

from __future__ import annotations

import functools
from typing import Any

from ..scopes._current import CURRENT
from ._torch_allocations import SEEN
from ._torch_imports import when_imported
from ._torch_results import births_in
from ._torch_traces import without_births

__all__ = ["watch_loaders"]


def watch_loaders() -> None:
    """Let a scope own the batches that it is given, and none that a loader keeps, from now on."""
    when_imported("torch.utils.data.dataloader", _watch)


def _watch(module: Any) -> None:
    iterator: Any = module._MultiProcessingDataLoaderIter
    receive = iterator._next_data
    quietly = without_births(receive)

    @functools.wraps(receive)
    def _next_data(self: Any) -> Any:
        batch = quietly(self)
        if SEEN and CURRENT.get() is not None:
            refusal = births_in(batch)
            if refusal is not None:
                del batch
                raise refusal
        return batch

    iterator._next_data = _next_data
