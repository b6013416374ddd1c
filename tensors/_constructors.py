"""Functions that make Tensors, with NumPy's argument order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ._alignment import served
from ._arguments import bare
from ._handle import Handle, wrap
from ._layout import device_of_numpy
from ._tensor import Tensor

__all__ = ["arange", "empty", "full", "ones", "tensor", "zeros"]

Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]


def tensor(data: ArrayLike | Tensor, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """A Tensor with a copy of the data.

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
    order: Order = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """A new Tensor of a shape, with elements that have no defined values: see `numpy.empty`.

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
    order: Order = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """A new Tensor of a shape, with zeros: see `numpy.zeros`.

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
    order: Order = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """A new Tensor of a shape, with ones: see `numpy.ones`.

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
    fill_value: ArrayLike | Handle,
    dtype: DTypeLike | None = None,
    order: Order = "C",
    *,
    device: str | None = None,
    name: str | None = None,
) -> Tensor:
    """A new Tensor of a shape, filled with a value: see `numpy.full`.

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
    """Evenly spaced values of a half-open interval: see `numpy.arange`, whose arguments these are.

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
