"""The garbage collector, held off while somebody looks: what is looked at shall not go because of the looking."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from ...scopes.forks import at_forks, hold_across_forks

__all__ = [
    "collection_paused",
]

_lock: Final = threading.Lock()
hold_across_forks(_lock, 2)
_thresholds: Final[list[tuple[int, int, int]]] = []
"""What was set before, once for each that is looking now."""


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Keep the allocations of a block from starting a collection, which would free the cycles to be reported.

    By the threshold: that the collector is on, or off, is the program's to say, also meanwhile and
    on another thread.
    """
    with _lock:
        before = _thresholds[0] if _thresholds else gc.get_threshold()
        _thresholds.append(before)
        gc.set_threshold(0, *before[1:])
    try:
        yield
    finally:
        with _lock:
            _thresholds.pop()
            # What the program has set meanwhile stays.
            if not _thresholds and gc.get_threshold()[0] == 0:
                gc.set_threshold(*before)


def _begin_as_child() -> None:
    # Whoever was looking in the parent is not there to turn the collector on again.
    if _thresholds:
        before = _thresholds[0]
        _thresholds.clear()
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


at_forks(in_child=_begin_as_child)
