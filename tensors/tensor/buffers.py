"""Arrays over memory that NumPy did not make: of bytes, a bytearray, an mmap, another library.

NumPy allocates nothing for such an array, so that the arena does not see it. It keeps the whole
buffer alive all the same, however small it is. While a detector is open, the births of such arrays
are recorded by the functions that make them: `numpy.frombuffer` and `numpy.asarray`,
`numpy.ndarray` with a buffer, `numpy.memmap`, and unpickling, which takes over the bytes of the
pickle. Every view of the result
refers to the result, which therefore stands for the memory.

What a capsule owns is another library's memory. While that library has a row for it, such as the
``jax.Array`` whose value an array shows, the array has none.

A buffer that the program itself still holds is not kept by its arrays. It has more references
than they have, and counts with the bytes that they show together then.

The map of a file is no memory of the process's own: the system reads it again from the file when
it is short of memory. It counts on the device "mapped".
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
_MEMORY: Final = "cpu:0"
_nbytes: Final[Any] = np.ndarray.nbytes.__get__
_interface: Final[Any] = vars(np.ndarray)["__array_interface__"].__get__


@final
class BufferFramework(Framework):
    """NumPy's arrays over memory of others."""

    module = "numpy"

    def __init__(self) -> None:
        self._log: Any = None
        self._is_installed = False
        self._by_address = MemoryByAddress(_span_of)

    def start_watching(self, log: Any, /) -> None:
        """Record the births of arrays over memory of others."""
        self._log = log
        # Called on each thread; the functions are replaced for all threads at once.
        if not self._is_installed:
            self._is_installed = PATCHES.change(NUMPY_BUFFERS, self._begin, _end)

    def stop_watching(self) -> None:
        """Record no more births."""
        self._is_installed = False
        PATCHES.restore(NUMPY_BUFFERS)

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the arrays of a window that are there now."""
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
        return LiveMemory(_NAME, references, rows, partial(self._identify, users, shown), _is_there)

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the buffer in which an address lies, of those that an array shows."""
        if self._log is None:
            return None
        array = self._by_address.at(address, self._log)
        return None if array is None else storage_of(array)[0]

    def _begin(self) -> bool:
        is_installed: bool = ARENA.record_buffers(self.record)
        return is_installed

    @recording
    def record(self, array: Any) -> None:
        """Record the birth of an array over memory of others, while a detector is open."""
        owner = buffer_behind(array)
        nbytes: int = _nbytes(array)
        if nbytes and (owner is not None or type(storage_of(array)[0]) is Address):
            self._log.record_memory(array, None, nbytes, _NAME, MAPPED if _is_of_file(owner) else _MEMORY)

    def _identify(self, users: Counter[int], shown: Counter[int], array: Any) -> MemoryFacts | None:
        if not isinstance(array, _ARRAY):
            # The memory of another framework.
            return None
        identity, nbytes = storage_of(array)
        if type(identity) is Address:
            return None if FRAMEWORKS.identity_at(identity, self) is not None else (identity, nbytes)
        owner = buffer_behind(array)
        is_held = count_references(owner) - OWN_REFERENCES > users[id(owner)]
        return identity, min(shown[id(owner)], nbytes) if is_held else nbytes


def _span_of(array: Any) -> tuple[int, int] | None:
    # What a capsule owns is known by the address itself.
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
    except (OSError, ValueError):  # it has no file; it was closed
        return False
    return True


def _is_there(reference: Callable[[], Any], _number: int) -> bool:
    return reference() is not None


BUFFERS: Final = BufferFramework()
register(BUFFERS)
