"""What an ndarray tells of its memory, and the views and conversions of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, cast

import numpy as np
from numpy.typing import DTypeLike

from ._alignment import alignment_of, served
from ._arguments import bare
from ._handle import wrap
from ._methods import Methods, Order

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = ["Layout"]


class Layout(Methods):
    """Attributes, views and copies. A view is a Tensor of its own that shares the storage of its base.

    What changes which memory an array has is not here: ``resize``, and assigning ``shape``, ``strides``, ``dtype`` or
    ``data``.
    """

    __slots__ = ()

    # ------------------------------------------------------------------ attributes

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self._array.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of the elements; the storage behind a view may be larger."""
        return self._array.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes to step along each axis."""
        return self._array.strides

    @property
    def flags(self) -> Any:
        """Layout and writeability: see `numpy.ndarray.flags`."""
        return self._array.flags

    @property
    def device(self) -> str:
        """The normalised name of the device: always ``"cpu:0"``."""
        _ = self._array
        return "cpu:0"

    @property
    def alignment(self) -> int:
        """The largest power of two that the address of the first element is a multiple of.

        At least 64 for what the constructors make, and for all that is born in a scope and no view.
        """
        return alignment_of(self._array)

    @property
    def data(self) -> memoryview:
        """The memory as a buffer; an export, as `numpy` makes them."""
        return self.numpy().data

    @property
    def ctypes(self) -> Any:
        """The address for `ctypes`; an export, as `numpy` makes them."""
        return self.numpy().ctypes

    @property
    def flat(self) -> np.flatiter[Any]:
        """An iterator over the elements in C order, through an export as `numpy` makes them."""
        return self.numpy().flat

    @flat.setter
    def flat(self, values: Any) -> None:
        array: Any = self._array
        array.flat = bare(values)

    @property
    def T(self) -> Tensor:
        """A view with the axes reversed."""
        return wrap(self._array.T)

    @property
    def mT(self) -> Tensor:
        """A view with the last two axes swapped."""
        return wrap(self._array.mT)

    @property
    def real(self) -> Tensor:
        """The real part, as a view; the tensor itself where it is real."""
        return self._part("real")

    @real.setter
    def real(self, values: Any) -> None:
        self._array.real = bare(values)

    @property
    def imag(self) -> Tensor:
        """The imaginary part, as a view; read-only zeros where the tensor is real."""
        return self._part("imag")

    @imag.setter
    def imag(self, values: Any) -> None:
        self._array.imag = bare(values)

    def _part(self, attribute: str) -> Tensor:
        array = self._array
        part = getattr(array, attribute)
        return cast("Tensor", self) if part is array else wrap(part)

    def setflags(self, *, write: bool) -> None:
        """Make the tensor writeable or read-only, where its memory allows that."""
        self._array.setflags(write=write)

    # ------------------------------------------------------------------ views

    def reshape(
        self,
        *shape: SupportsIndex | Sequence[SupportsIndex],
        order: Literal["C", "F", "A"] | None = "C",
        copy: bool | None = None,
    ) -> Tensor:
        """The elements in another shape, as a view where that is possible: see `numpy.ndarray.reshape`."""
        array: Any = self._array
        return wrap(array.reshape(*bare(shape), order=order, copy=copy))

    def ravel(self, order: Order = "C") -> Tensor:
        """The elements along one axis, as a view where that is possible: see `numpy.ndarray.ravel`."""
        return wrap(self._array.ravel(order))

    def transpose(self, *axes: SupportsIndex | Sequence[SupportsIndex] | None) -> Tensor:
        """A view with the axes permuted: see `numpy.ndarray.transpose`."""
        array: Any = self._array
        return wrap(array.transpose(*axes))

    def swapaxes(self, axis1: SupportsIndex, axis2: SupportsIndex) -> Tensor:
        """A view with two axes swapped."""
        return wrap(self._array.swapaxes(axis1, axis2))

    def squeeze(self, axis: SupportsIndex | tuple[SupportsIndex, ...] | None = None) -> Tensor:
        """A view without axes of size one: see `numpy.ndarray.squeeze`."""
        return wrap(self._array.squeeze(axis))

    def view(self, dtype: DTypeLike | None = None) -> Tensor:
        """The same memory, read as elements of another dtype if one is given.

        Raises
        ------
        TypeError
            What is given is a type of arrays: a Tensor stays one.
        """
        array: Any = self._array
        if isinstance(dtype, type) and issubclass(dtype, np.ndarray):
            raise TypeError(f"view: a Tensor cannot be viewed as {dtype.__qualname__}; use numpy().view(...)")
        return wrap(array.view() if dtype is None else array.view(dtype))

    def getfield(self, dtype: DTypeLike, offset: SupportsIndex = 0) -> Tensor:
        """A view of some bytes of each element: see `numpy.ndarray.getfield`."""
        array: Any = self._array
        return wrap(array.getfield(dtype, offset))

    def setfield(self, val: Any, dtype: DTypeLike, offset: SupportsIndex = 0) -> None:
        """Set some bytes of each element: see `numpy.ndarray.setfield`."""
        self._array.setfield(bare(val), dtype, offset)

    # ------------------------------------------------------------------ copies

    def astype(
        self,
        dtype: DTypeLike,
        order: Order = "K",
        casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"] = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Tensor:
        """The elements as another dtype, the tensor itself where ``copy=False`` allows: see `numpy.ndarray.astype`."""
        return self._call("astype", dtype, order, casting, subok, copy)

    def copy(self, order: Order = "C") -> Tensor:
        """A copy with memory of its own."""
        return wrap(served(self._array.copy, order))

    def flatten(self, order: Order = "C") -> Tensor:
        """A copy along one axis."""
        return wrap(served(self._array.flatten, order))

    def byteswap(self, inplace: bool = False) -> Tensor:
        """The bytes of each element reversed: see `numpy.ndarray.byteswap`."""
        return self._call("byteswap", inplace)

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """The tensor itself: ``"cpu"`` is the only device that there is."""
        self._array.to_device(device_of_numpy(device), stream=stream)
        return cast("Tensor", self)

    def item(self, *index: Any) -> Any:
        """One element as a Python object: see `numpy.ndarray.item`."""
        return self._array.item(*bare(index))

    def tolist(self) -> Any:
        """The elements as Python objects in nested lists."""
        return self._array.tolist()

    def tobytes(self, order: Order = "C") -> bytes:
        """The elements' bytes."""
        return self._array.tobytes(order)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the elements to a file: see `numpy.ndarray.tofile`."""
        self._array.tofile(fid, sep, format)


def device_of_numpy(device: object) -> Literal["cpu"]:
    """NumPy's name for a device that arrays can live on.

    Raises
    ------
    ValueError
        The device is no CPU.
    """
    if str(device).strip().lower() not in ("cpu", "cpu:0"):
        raise ValueError(f"a Tensor lives on the CPU; there is no device {device!r} for it")
    return "cpu"
