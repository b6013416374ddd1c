"""The memory behind an array, and the walk through arrays of objects."""

from __future__ import annotations

import ctypes
import datetime
import mmap
import sys
from array import array as Array
from collections.abc import Callable, Iterator
from typing import Any, Final, cast, final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...scopes.framework import Framework, register
from ..arena.extension import ARENA

__all__ = [
    "Address",
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

    Every view of the alias keeps it, NumPy collapses the chain no further, and unlike a plain base
    it belongs to one export alone: it lives exactly as long as somebody holds memory that was
    exported there.
    """

    __slots__ = ("__array_interface__", "__weakref__", "base")

    __array_interface__: dict[str, Any]
    base: NDArray[Any]

    def __init__(self, array: NDArray[Any]) -> None:
        self.base = array
        self.__array_interface__ = array.__array_interface__


@final
class Address(int):
    """Where memory is whose owner another library knows, and Python cannot ask."""

    __slots__ = ()


_STRIDED: Final[type[Any]] = type(as_strided(np.empty(1)).base)
_ARRAY: Final[Any] = np.ndarray

# These stand between an array and the one whose memory it shares, as their attribute `base`.
ARENA.set_base_types((AliasBase, _STRIDED))

_block: Final[Callable[[NDArray[Any]], tuple[int, int] | None]] = ARENA.block
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
        The address of the block where the arena serves the memory. That of the memory, an
        `Address`, where the owner is a capsule: another library's, of which there may be several
        for the same memory. Else the ``id`` of the object that owns it: good as long as the array
        is alive.
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
        except ValueError:  # closed since, for a map of a file
            pass
    if type(base) is _CAPSULE:
        return Address(_interface(top)["data"][0]), top.nbytes
    return id(base), top.nbytes


def buffer_behind(array: NDArray[Any]) -> object:
    """Return the bytes, bytearray or the like that an array shows; None for other memory."""
    top: Any = array
    while isinstance(top.base, _ARRAY):
        top = top.base
    return owner_of_buffer(top.base)


def owner_of_buffer(buffer: object) -> object:
    """Return the bytes, bytearray or the like behind a buffer; None for other memory.

    Other memory is, for example, an array's.
    """
    owner: Any = buffer
    if type(owner) is memoryview:
        owner = owner.obj
    return owner if isinstance(owner, _BYTES_LIKE) else None


count_references: Final = sys.getrefcount
"""Return how many references an object has: `OWN_REFERENCES` for one in a local variable alone.

No function of Python stands between: whether the caller of one has a reference to its argument
depends on who evaluates frames, which `torch.compile` changes while the program runs.
"""


def _own_references() -> int:
    # How many of the references that are counted are the caller's depends on the interpreter.
    thing = object()
    return count_references(thing)


OWN_REFERENCES: Final = _own_references()


# The walk through arrays of objects: what they hold is found, element by element.


def children(node: object) -> Iterator[tuple[str, object]] | None:
    """Return the objects in an array, labelled by their index; None for what is no array.

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
    # As a plain array: a subclass may have code of its own in every access.
    return _objects(np.ndarray.view(array, np.ndarray), "")


def _objects(array: NDArray[Any], field: str) -> Iterator[tuple[str, object]]:
    dtype = array.dtype
    if dtype.fields is not None:
        for name in dtype.names or ():
            yield from _objects(array[name], f"{field}[{name!r}]")
    elif dtype.char == "O":
        for index in np.ndindex(array.shape):
            yield f"{field}[{', '.join(map(str, index)) or '()'}]", array[index]


@final
class ObjectArrayFramework(Framework):
    """NumPy's arrays: they are no resources, and arrays of objects hold some."""

    module = "numpy"

    def children(self, node: object) -> Iterator[tuple[str, object]] | None:
        """Return the objects in an array: see `children`."""
        return children(node)


register(ObjectArrayFramework())
