"""The passes of a worker process: what it hands over to its parent by a queue of `multiprocessing` ends one.

So do the batches of a DataLoader's worker and the results of a pool's.
"""

from __future__ import annotations

from functools import wraps
from multiprocessing import queues
from typing import Any, Final

from ._evidence import HANDED_OVER
from ._watching import is_watching, mark

__all__ = ["count_handovers"]

_counted: Final[list[bool]] = []


def count_handovers() -> None:
    """Count what this process, a worker, puts into queues from now on, while a detector is open. Once in a process."""
    if _counted:
        return
    _counted.append(True)
    for cls in (queues.Queue, queues.SimpleQueue):
        _count(cls)


def _count(cls: Any) -> None:
    put = cls.put

    @wraps(put)
    def counted(queue: Any, *args: Any, **kwargs: Any) -> Any:
        result = put(queue, *args, **kwargs)
        if is_watching():
            mark(HANDED_OVER)
        return result

    cls.put = counted
