"""The handle around an array: how it is born, what it tells of itself when it is dead, how it is let go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..scopes._births import born
from ..scopes._compacting import COPIERS
from ..scopes._entry import entry_of, unit_of
from ..scopes._kinds import Kind, add_kind
from ..scopes._releases import disposed_error, release
from ._alignment import served
from ._arena_arrival import ARENA
from ._storage import storage_of

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = ["TENSOR", "Handle", "instantiable", "unborn", "wrap"]

H = TypeVar("H", bound="Handle")
Tomb = tuple[tuple[int, ...], np.dtype[Any], str | None]


class Handle:
    """What all floors of `Tensor` share: the array, and the end of it.

    A disposed handle has no ``_array``: whatever reads it, on any path, ends in ``__getattr__``, which raises. No
    method has to ask first.
    """

    __slots__ = ("__weakref__", "_array", "_name", "_tomb")

    _array: NDArray[Any]
    _name: str | None
    _tomb: Tomb | None

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            # Reached for what is missing only: the slots that are not filled, and what does not exist.
            if attribute == "_array":
                raise disposed_error(self, TENSOR)
            if attribute == "_name" or attribute == "_tomb":
                return None
            raise AttributeError(f"{type(self).__qualname__!r} object has no attribute {attribute!r}")

    @property
    def disposed(self) -> bool:
        """Whether this tensor has been disposed; everything but this, `dispose`, ``repr`` and ``hash`` raises then."""
        return array_of(self) is None

    @property
    def name(self) -> str | None:
        """The name that messages and reports show, or None."""
        _ = self._array
        return self._name

    def dispose(self) -> None:
        """Release this tensor now, whoever owns it. Idempotent.

        The memory is freed with its last view or exported alias. A member of a composite is disposed with its
        composite.

        Raises
        ------
        BaseException
            What the release of a composite that it is a member of raised.

        Examples
        --------
        >>> import disposescope as ds
        >>> t = ds.zeros(3)
        >>> t.dispose()
        >>> t.disposed, t
        (True, <disposed Tensor shape=(3,) dtype=float64>)
        """
        entry = entry_of(self)
        if entry is None:
            _release(self)
            return
        failure = release(unit_of(entry))
        if failure is not None:
            raise failure


_array_in: Final[Callable[[Handle], Any]] = vars(Handle)["_array"].__get__
_new: Final = object.__new__
_ndarray: Final[Any] = np.ndarray
_NUMPY: Final[tuple[Any, ...]] = (np.generic, np.ndarray)
_class: type[Handle] = Handle


def instantiable(cls: type[H]) -> type[H]:
    """Decorate the class that `wrap` makes instances of."""
    global _class
    _class = cls
    return cls


def array_of(handle: Handle) -> NDArray[Any] | None:
    """The array of a handle, or None where it is disposed; never raises."""
    try:
        array: NDArray[Any] = _array_in(handle)
    except AttributeError:
        return None
    return array


def describe(handle: Handle) -> str:
    """Shape, dtype and name of a tensor, live or disposed."""
    array = array_of(handle)
    tomb: Tomb | None = handle._tomb if array is None else (array.shape, array.dtype, handle._name)
    return "Tensor" if tomb is None else spelled(*tomb)


def spelled(shape: tuple[int, ...], dtype: np.dtype[Any], name: str | None) -> str:
    """Shape, dtype and name of a tensor, for messages and reports."""
    return f"Tensor shape={shape} dtype={dtype}{'' if name is None else f' name={name!r}'}"


def _release(handle: Handle) -> None:
    array = array_of(handle)
    if array is not None:
        handle._tomb = (array.shape, array.dtype, handle._name)
        with suppress(AttributeError):  # another thread was first
            del handle._array


def _storages(handle: Handle) -> tuple[tuple[int, int], ...]:
    # Asked for by whoever counts, while another thread may dispose the handle; of each tensor, when all are counted.
    try:
        array: NDArray[Any] = _array_in(handle)
    except AttributeError:
        return ()
    return (storage_of(array),)


# Spelling a dtype takes longer than all else that a report asks of a tensor.
_dtypes: Final[dict[np.dtype[Any], tuple[str, int]]] = {}
_DTYPES_AT_MOST: Final = 256


def _layout(handle: Handle) -> tuple[tuple[int, ...], str, int] | None:
    try:
        array: NDArray[Any] = _array_in(handle)
    except AttributeError:
        return None
    dtype = array.dtype
    known = _dtypes.get(dtype)
    if known is None:
        known = str(dtype), dtype.itemsize
        if len(_dtypes) < _DTYPES_AT_MOST:
            _dtypes[dtype] = known
    return array.shape, known[0], array.nbytes


_tellers: tuple[Any, Any] = _storages, _layout
if ARENA is not None:
    _tellers = ARENA.tellers(Handle, vars(Handle)["_array"], _storages, _layout, _dtypes)


def _memory(handle: Handle) -> tuple[NDArray[Any], ...]:
    array = array_of(handle)
    return () if array is None else (array,)


def _compact(handle: Handle) -> None:
    array = array_of(handle)
    if array is not None:
        handle._array = compact_copy(array)


def compact_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array that pins more memory than it uses; any other array itself."""
    return served(np.array, array, subok=True) if storage_of(array)[1] > array.nbytes else array


COPIERS[np.ndarray] = cast("Any", compact_copy)
COPIERS[np.ma.MaskedArray] = cast("Any", compact_copy)


def _device(_handle: Handle) -> str:
    return "cpu:0"


def _is_disposed(handle: Handle) -> bool:
    return array_of(handle) is None


TENSOR: Final = Kind(
    cls=Handle,
    name="Tensor",
    release=_release,
    storages=_tellers[0],
    device=_device,
    describe=describe,
    is_disposed=_is_disposed,
    layout=_tellers[1],
    memory=_memory,
    compact=_compact,
)
"""The kind of `Tensor`."""

add_kind(TENSOR)


def wrap(array: Any, name: str | None = None) -> Tensor:
    """A new Tensor around an array, without a copy, born in the current scope.

    Parameters
    ----------
    array : numpy.ndarray or numpy.generic or object
        The array. A NumPy scalar becomes an array of rank 0, and so does any other object, of dtype object: what NumPy
        returns where it reduces an array of objects.
    name : str, optional
        Shown in messages and reports.
    """
    if type(array) is not _ndarray:
        array = _rank_0(array)
    handle = _new(_class)
    handle._array = array
    if name is not None:
        handle._name = name
    born(handle, TENSOR)
    return handle  # type: ignore[return-value]  # `instantiable` was given Tensor


def unborn(array: NDArray[Any]) -> Tensor:
    """A new Tensor around an array, of which no scope knows: it is to become a member of a composite."""
    handle = _new(_class)
    handle._array = array
    return handle  # type: ignore[return-value]  # `instantiable` was given Tensor


def _rank_0(value: Any) -> NDArray[Any]:
    if isinstance(value, _NUMPY):
        return served(np.asarray, value)
    box: NDArray[Any] = served(np.empty, (), dtype=object)
    box[()] = value
    return box
