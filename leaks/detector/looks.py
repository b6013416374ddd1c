"""Look at the program undisturbed: one look at a time, the garbage collector paused, the frameworks quiet."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import final

from ...scopes.base.process import at_forks
from ...scopes.framework import FRAMEWORKS

__all__ = [
    "undisturbed_look",
    "unless_another_looks",
]


@final
class _Looks:
    """The lock of whoever looks, and the thresholds of the collector before; None while nobody looks."""

    lock = threading.RLock()
    thresholds: tuple[int, int, int] | None = None


@contextmanager
def undisturbed_look() -> Generator[None, None, None]:
    """Look at what lives, and who holds it, in a block; wait while another thread looks.

    What a look has found it holds until its end, which another one would take for references of the
    program. Allocations start no garbage collection meanwhile, which would free the cycles that are
    to be reported, and the frameworks are quiet: see `Framework.quiet`.

    It sets the threshold of the collector and does not turn it off: the program may turn it on or
    off meanwhile, on another thread.
    """
    # A forked child has another lock.
    with _Looks.lock:
        is_outermost = _Looks.thresholds is None
        if is_outermost:
            _Looks.thresholds = before = gc.get_threshold()
            gc.set_threshold(0, *before[1:])
        try:
            with ExitStack() as quiet:
                for framework in FRAMEWORKS.with_own("quiet"):
                    quiet.enter_context(framework.quiet())
                yield
        finally:
            if is_outermost:
                _let_collect()


@contextmanager
def unless_another_looks() -> Generator[bool, None, None]:
    """Begin a block in which this thread may look without waiting; say whether that is so.

    A thread of the program may hold locks, and what another one drops while it looks may wait for them.
    """
    lock = _Looks.lock
    if not lock.acquire(blocking=False):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _let_collect() -> None:
    before, _Looks.thresholds = _Looks.thresholds, None
    # Keep what the program has set meanwhile.
    if before is not None and gc.get_threshold()[0] == 0:
        gc.set_threshold(*before)


def _begin_as_child() -> None:
    # The thread that looked in the parent does not exist in the child.
    _Looks.lock = threading.RLock()
    _let_collect()


at_forks(in_child=_begin_as_child)
