"""Arrays over foreign memory, for a leak detector: bytes, a bytearray, an mmap, another library.

NumPy allocates nothing for such an array, so that the arena does not see it. But the array keeps
the whole buffer alive, however small the array is. While a detector is open, the functions that
make such arrays are patched to record births: `numpy.frombuffer`, `numpy.asarray`, `numpy.ndarray`
with a buffer, `numpy.memmap`, and unpickling, which takes over the bytes of the pickle. The new
array stands for the memory, because every view of it refers to it.

Memory that a capsule owns belongs to another library. If that library reports the memory itself,
such as that of a ``jax.Array``, it is not reported here.

If a buffer has more references than those of its arrays, the program holds it itself, and the
arrays do not keep it alive. Then it counts with the bytes of its arrays only.

A file mapping is no memory of the process: when the system is short of memory it drops the pages,
and reads them again from the file. It counts on the device "mapped".
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, final

import numpy as np

from ...scopes.base.process import PATCHES
from ...scopes.framework import FRAMEWORKS, Framework, LiveMemory, MemoryByAddress, MemoryFacts, recording, register
from ...scopes.kinds import MAPPED
from ..arena.extension import ARENA
from ..numpy.storage import OWN_REFERENCES, Address, buffer_behind, count_references, storage_of
from ..patches import NUMPY_BUFFERS

__all__ = ["BUFFERS"]

_ARRAY: Final[Any] = np.ndarray
_NAME: Final = "numpy.ndarray"
"""The name of the kind of arrays in the log."""
_CPU: Final = "cpu:0"
"""The device of all memory but file mappings."""
_nbytes: Final[Any] = np.ndarray.nbytes.__get__
_interface: Final[Any] = vars(np.ndarray)["__array_interface__"].__get__


@final
class BufferFramework(Framework):
    """NumPy arrays over foreign memory."""

    module = "numpy"

    def __init__(self) -> None:
        self._log: Any = None
        self._is_installed = False
        self._by_address = MemoryByAddress(_span_of)

    def start_watching(self, log: Any, /) -> None:
        """Record the births of arrays over foreign memory."""
        self._log = log
        # This is called on each thread, and the functions are replaced for all threads at once.
        if not self._is_installed:
            self._is_installed = PATCHES.change(NUMPY_BUFFERS, self._begin, _end)

    def stop_watching(self) -> None:
        """Stop recording births."""
        self._is_installed = False
        PATCHES.restore(NUMPY_BUFFERS)

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the arrays born with numbers above `after`, up to `until`, that are alive."""
        if self._log is None:
            return None
        references, rows = self._log.recorded_memory(after, until)
        users: Counter[int] = Counter()
        shown: Counter[int] = Counter()
        for reference in references:
            array: Any = reference()
            if isinstance(array, _ARRAY):
                owner = id(buffer_behind(array))
                users[owner] += 1
                shown[owner] += _nbytes(array)
            array = None
        return LiveMemory(_NAME, references, rows, partial(self._identify, users, shown), _is_alive)

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the identity of the buffer behind a recorded array that an address lies in."""
        if self._log is None:
            return None
        array = self._by_address.at(address, self._log)
        return None if array is None else storage_of(array)[0]

    def _begin(self) -> bool:
        is_installed: bool = ARENA.record_buffers(self.record)
        return is_installed

    @recording
    def record(self, array: Any) -> None:
        """Record the birth of an array over foreign memory, while a detector is open."""
        owner = buffer_behind(array)
        nbytes: int = _nbytes(array)
        if nbytes and (owner is not None or type(storage_of(array)[0]) is Address):
            self._log.record_memory(array, None, nbytes, _NAME, MAPPED if _is_of_file(owner) else _CPU)

    def _identify(self, users: Counter[int], shown: Counter[int], array: Any) -> MemoryFacts | None:
        """Return identity and bytes of the memory behind a recorded array.

        By ``id`` of a buffer, `users` has the number of its recorded arrays, `shown` their bytes.
        """
        if not isinstance(array, _ARRAY):
            # The log has anchors of other frameworks too.
            return None
        identity, nbytes = storage_of(array)
        if type(identity) is Address:
            return None if FRAMEWORKS.identity_at(identity, self) is not None else (identity, nbytes)
        owner = buffer_behind(array)
        is_held = count_references(owner) - OWN_REFERENCES > users[id(owner)]
        return identity, min(shown[id(owner)], nbytes) if is_held else nbytes


def _span_of(array: Any) -> tuple[int, int] | None:
    # Memory of a capsule needs no span: its identity is the address itself.
    if not isinstance(array, _ARRAY) or buffer_behind(array) is None:
        return None
    start: int = _interface(array)["data"][0]
    return start, start + _nbytes(array)


def _end() -> None:
    ARENA.record_buffers(None)


def _is_of_file(owner: object) -> bool:
    if not isinstance(owner, mmap.mmap):
        return False
    try:
        owner.size()
    except (OSError, ValueError):  # an anonymous mapping; a closed one
        return False
    return True


def _is_alive(reference: Callable[[], Any], _number: int) -> bool:
    return reference() is not None


BUFFERS: Final = BufferFramework()
register(BUFFERS)
