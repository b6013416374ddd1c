"""The memory behind an array, and the walk through arrays of objects."""

from __future__ import annotations

import ctypes
import datetime
import mmap
import sys
from array import array as Array
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final, cast, final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...scopes.framework import Framework, register
from ..arena.extension import ARENA

__all__ = [
    "Address",
    "BETWEEN_ARRAYS",
    "OWN_REFERENCES",
    "AliasBase",
    "children",
    "count_references",
    "buffer_behind",
    "owner_of_buffer",
    "storage_of",
]


class AliasBase:
    """The object between an exported alias and its array in the chain of ``.base``.

    Each export has its own, and every view of the alias keeps it alive: NumPy shortens the chain of
    bases no further than to this object. So it lives exactly as long as the exported memory is
    referenced.
    """

    __slots__ = ("__array_interface__", "__weakref__", "base")

    __array_interface__: dict[str, Any]
    base: NDArray[Any]

    def __init__(self, array: NDArray[Any]) -> None:
        self.base = array
        self.__array_interface__ = array.__array_interface__


@final
class Address(int):
    """The address of another library's memory, whose owner Python cannot find."""

    __slots__ = ()


_STRIDED: Final[type[Any]] = type(as_strided(np.empty(1)).base)
"""The class of the object that NumPy's `as_strided` puts between an array and its base."""
_ARRAY: Final[Any] = np.ndarray

BETWEEN_ARRAYS: Final[tuple[type[Any], ...]] = AliasBase, _STRIDED
"""Classes of objects that stand between an array and the array whose memory it shares."""
ARENA.set_base_types(BETWEEN_ARRAYS)

_block: Final[Callable[[NDArray[Any]], tuple[int, int] | None]] = ARENA.block
# The type PyCapsule has no name in Python.
_CAPSULE: Final = cast("type[object]", type(getattr(datetime, "datetime_CAPI")))  # noqa: B009  # not in the stubs
_interface: Final[Any] = vars(np.ndarray)["__array_interface__"].__get__
_BYTES_LIKE: Final[tuple[Any, ...]] = (bytes, bytearray, memoryview, mmap.mmap, Array, ctypes.Array)


def storage_of(array: NDArray[Any]) -> tuple[int, int]:
    """Return the storage behind an array.

    Parameters
    ----------
    array : numpy.ndarray
        An array, perhaps a view of a view.

    Returns
    -------
    identity : int
        If the arena serves the memory, the address of the block. If a capsule owns the memory, its
        address as an `Address`: the memory is another library's, and may have several capsules.
        Otherwise the ``id`` of the object that owns the memory. Valid as long as the array lives.
    nbytes : int
        The bytes of the whole memory, however small the view.

    Examples
    --------
    >>> import numpy as np
    >>> big = np.zeros(1000)
    >>> storage_of(big[:10]) == (id(big), 8000)
    True
    """
    block = _block(array)
    if block is not None:
        return block
    top: Any = array
    while True:
        base: Any = top.base
        cls: Any = type(base)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is AliasBase or (cls is _STRIDED and base.base is not None):
            base = base.base
        elif cls is memoryview and base.obj is not None:
            base = base.obj
        if base is None:
            return id(top), top.nbytes
        if not isinstance(base, _ARRAY):
            break
        top = base
    if isinstance(base, _BYTES_LIKE):
        try:
            return id(base), memoryview(base).nbytes
        except ValueError:  # a file mapping that was closed since
            pass
    if type(base) is _CAPSULE:
        return Address(_interface(top)["data"][0]), top.nbytes
    return id(base), top.nbytes


def owner_of_another_kind(array: NDArray[Any]) -> tuple[object, Address]:
    """Return the object that is no array and owns an array's memory, and where that begins.

    The object is None if NumPy owns the memory.
    """
    first = _first_array(array)
    return first.base, Address(_interface(first)["data"][0])


def buffer_behind(array: NDArray[Any]) -> object:
    """Return the bytes, bytearray or similar object behind an array; None for other memory."""
    return owner_of_buffer(_first_array(array).base)


def _first_array(array: NDArray[Any]) -> Any:
    """Return the array that an array is a view of, perhaps by way of others; or itself."""
    first: Any = array
    while isinstance(first.base, _ARRAY):
        first = first.base
    return first


def owner_of_buffer(buffer: object) -> object:
    """Return the bytes, bytearray or similar object behind a buffer.

    None for other memory, such as an array's.
    """
    owner: Any = buffer
    if type(owner) is memoryview:
        owner = owner.obj
    return owner if isinstance(owner, _BYTES_LIKE) else None


count_references: Final = sys.getrefcount
"""Return how many references an object has.

`OWN_REFERENCES` for an object that only a local variable refers to. It must be this built-in itself
and no Python function around it: whether a frame has a reference to its argument depends on the
evaluation of frames, which `torch.compile` changes while the program runs.
"""


def _own_references() -> int:
    # The number of references that the call itself has depends on the version of Python.
    thing = object()
    return count_references(thing)


OWN_REFERENCES: Final = _own_references()
"""What `count_references` returns for an object that only a local variable refers to."""


# The walk through arrays of objects.


def children(node: object) -> Iterator[tuple[str, object]] | None:
    """Return the objects in an array, labelled by their index; None for objects of other types.

    Examples
    --------
    >>> import numpy as np
    >>> list(children(np.array([["a", None]], dtype=object)))
    [('[0, 0]', 'a'), ('[0, 1]', None)]
    """
    if not issubclass(type(node), np.ndarray):
        return None
    array: Any = node
    if type(array) is np.ndarray and not array.dtype.hasobject:
        return iter(())
    # As a plain array, because a subclass may run its own code at every access.
    return _objects(np.ndarray.view(array, np.ndarray), "")


def _objects(array: NDArray[Any], field: str) -> Iterator[tuple[str, object]]:
    dtype = array.dtype
    if dtype.fields is not None:
        for name in dtype.names or ():
            yield from _objects(array[name], f"{field}[{name!r}]")
    elif dtype.char == "O":
        # Not `np.ndindex`: before NumPy 2.4 it makes an array, which a detector would record.
        for index in product(*map(range, array.shape)):
            yield f"{field}[{', '.join(map(str, index)) or '()'}]", array[index]


@final
class ObjectArrayFramework(Framework):
    """NumPy arrays, which are no resources themselves; arrays of objects may hold resources."""

    module = "numpy"

    def children(self, node: object) -> Iterator[tuple[str, object]] | None:
        """Return the objects in an array: see `children`."""
        return children(node)


register(ObjectArrayFramework())
