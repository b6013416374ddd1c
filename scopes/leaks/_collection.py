"""The garbage collector, held off while somebody looks: what is looked at shall not go because of the looking."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Keep the allocations of a block from starting a collection, which would free the cycles to be reported."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
