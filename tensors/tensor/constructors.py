"""Functions that make Tensors, with NumPy's arguments, and Tensors over existing memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..numpy.alignment import ALIGNMENT, aligned, alignment_of, served
from .tensor import Tensor, bare, device_of_numpy, wrap

__all__ = [
    "arange",
    "asarray",
    "empty",
    "from_dlpack",
    "full",
    "ones",
    "tensor",
    "zeros",
]

Shape = SupportsIndex | Sequence[SupportsIndex]
MemoryOrder = Literal["C", "F"]


def tensor(data: ArrayLike | Tensor, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """Return a Tensor with a copy of the data.

    Parameters
    ----------
    data : array_like
        Nested sequences may hold Tensors.
    dtype : dtype_like, optional
        The type of the elements; found from the data where left out.
    name : str, optional
        Shown in messages and reports.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.tensor([1, 2], dtype="float32", name="weights")
    Tensor([1., 2.], dtype=float32, name='weights')
    """
    return Tensor(data, dtype, name)


def empty(
    shape: Shape,
    dtype: DTypeLike | None = float,
    order: MemoryOrder = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Return a new Tensor of a shape, with undefined values: see `numpy.empty`.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.empty((2, 3)).shape
    (2, 3)
    """
    _check(device)
    return wrap(served(np.empty, bare(shape), dtype, order), name)


def zeros(
    shape: Shape,
    dtype: DTypeLike | None = float,
    order: MemoryOrder = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Return a new Tensor of a shape, with zeros: see `numpy.zeros`.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.zeros(2, dtype=int)
    Tensor([0, 0])
    """
    _check(device)
    return wrap(served(np.zeros, bare(shape), dtype, order), name)


def ones(
    shape: Shape,
    dtype: DTypeLike | None = float,
    order: MemoryOrder = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Return a new Tensor of a shape, with ones: see `numpy.ones`.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.ones((1, 2))
    Tensor([[1., 1.]])
    """
    _check(device)
    return wrap(served(np.ones, bare(shape), dtype, order), name)


def full(
    shape: Shape,
    fill_value: ArrayLike | Tensor,
    dtype: DTypeLike | None = None,
    order: MemoryOrder = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Return a new Tensor of a shape, filled with a value: see `numpy.full`.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.full(2, 7)
    Tensor([7, 7])
    """
    _check(device)
    return wrap(served(np.full, bare(shape), bare(fill_value), dtype, order), name)


@overload
def arange(
    stop: Any, /, *, dtype: DTypeLike | None = None, device: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def arange(
    start: Any,
    stop: Any,
    step: Any = ...,
    dtype: DTypeLike | None = None,
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def arange(*args: Any, device: str | None = None, name: str | None = None, **options: Any) -> Tensor:
    """Return evenly spaced values of a half-open interval: see `numpy.arange`.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.arange(3), ds.arange(0, 1, 0.5)
    (Tensor([0, 1, 2]), Tensor([0. , 0.5]))
    """
    _check(device)
    if "like" in options:
        raise TypeError("arange() got an unexpected keyword argument 'like'")
    make: Any = np.arange
    return wrap(served(make, *bare(args), **bare(options)), name)


def _check(device: str | None) -> None:
    if device is not None:
        device_of_numpy(device)


# Tensors over existing memory: arrays, and memory of other libraries through DLPack.


def asarray(
    a: Any,
    dtype: DTypeLike | None = None,
    order: Literal["K", "A", "C", "F"] | None = None,
    *,
    device: str | None = None,
    copy: bool | None = None,
    align: Literal["keep", "copy", "error"] = "keep",
    name: str | None = None,
) -> Tensor:
    """Return a Tensor of the data that shares its memory if possible: see `numpy.asarray`.

    Parameters
    ----------
    a : array_like
        A Tensor that fits is returned itself. The memory of an ndarray is shared; the ndarray stays
        valid when the Tensor is disposed.
    dtype : dtype_like, optional
        The type of the elements.
    order : {"K", "A", "C", "F"}, optional
        The memory layout.
    device : str, optional
        ``"cpu"``, the only one there is.
    copy : bool, optional
        True copies, False raises where memory cannot be shared, None copies where it must.
    align : {"keep", "copy", "error"}, default "keep"
        What happens if the memory does not begin at a multiple of 64 bytes: it is shared as it is,
        copied (``arena_statistics().alignment_copies`` counts these copies), or refused.
    name : str, optional
        Shown in messages and reports; a new handle gets it.

    Raises
    ------
    ValueError
        A copy is needed and ``copy=False``; the memory is not aligned and ``align="error"``;
        `align` is none of these.

    Examples
    --------
    >>> import disposescope as ds, numpy as np
    >>> array = np.zeros(2)
    >>> ds.asarray(array)[0] = 5
    >>> array
    array([5., 0.])
    """
    if device is not None:
        device_of_numpy(device)
    if align not in ("keep", "copy", "error"):
        raise ValueError(f'asarray: align must be "keep", "copy" or "error", not {align!r}')
    given = bare(a)
    array: np.ndarray[Any, Any] = served(np.asarray, given, dtype, order, copy=copy)
    if align != "keep" and array.size and alignment_of(array) < ALIGNMENT:
        if align == "error" or copy is False:
            raise ValueError(
                f"asarray: the memory begins at a multiple of {alignment_of(array)} bytes and not of {ALIGNMENT}; "
                'a copy is aligned: align="copy"'
            )
        array = aligned(array)
    if isinstance(a, Tensor) and array is given and name is None:
        return a
    # Take a view, so that a new shape of the caller's array does not change the Tensor.
    return wrap(array.view() if array is given else array, name)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Return a Tensor that shares the memory of an object with ``__dlpack__`` and keeps it alive.

    Parameters
    ----------
    x : object
        A Tensor, an ndarray, a CPU tensor of PyTorch or JAX, ...
    device : str, optional
        ``"cpu"``, the only one there is.
    copy : bool, optional
        True copies, False raises where memory cannot be shared.

    Raises
    ------
    BufferError
        The producer cannot lend its memory in this way.
    TypeError
        `x` has no ``__dlpack__``.

    Examples
    --------
    >>> import disposescope as ds, numpy as np
    >>> array = np.zeros(2)
    >>> ds.from_dlpack(array)[0] = 5
    >>> array
    array([5., 0.])
    """
    if device is not None:
        device_of_numpy(device)
    if isinstance(x, (Tensor, np.ndarray)):
        array = bare(x)
        return wrap(array.copy() if copy else array.view(np.ndarray))
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: a {type(x).__qualname__} has no __dlpack__; asarray() takes array-likes")
    return wrap(np.from_dlpack(x, copy=copy))
