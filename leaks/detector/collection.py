"""Pause the garbage collector while a snapshot is taken, so that the snapshot frees nothing.

Frameworks are quiet meanwhile, too.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Final

from ...scopes.base.process import at_forks, hold_across_forks
from ...scopes.framework import FRAMEWORKS

__all__ = [
    "collection_paused",
]

# Reading the threshold makes an object: a finalizer may run there, and make a report.
_lock: Final = threading.RLock()
hold_across_forks(_lock, 2)
_thresholds: Final[list[tuple[int, int, int]]] = []
"""The thresholds before the pause, once for each block that is running."""


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Keep allocations in a block from starting a garbage collection.

    A collection would free the cycles that are to be reported. The frameworks are quiet meanwhile:
    see `Framework.quiet`.

    It sets the threshold to 0 instead of turning the collector off, because the program may turn it
    on or off meanwhile, on another thread.
    """
    with _lock:
        before = _thresholds[0] if _thresholds else gc.get_threshold()
        _thresholds.append(before)
        gc.set_threshold(0, *before[1:])
    try:
        with ExitStack() as quiet:
            for framework in FRAMEWORKS.with_own("quiet"):
                quiet.enter_context(framework.quiet())
            yield
    finally:
        with _lock:
            _thresholds.pop()
            # Another threshold than 0 was set by the program meanwhile: keep it.
            if not _thresholds and gc.get_threshold()[0] == 0:
                gc.set_threshold(*before)


def _begin_as_child() -> None:
    # The thread that paused the collector in the parent does not exist in the child.
    if _thresholds:
        before = _thresholds[0]
        _thresholds.clear()
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


at_forks(in_child=_begin_as_child)
