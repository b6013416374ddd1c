"""The methods of an ndarray that compute, select and reorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict, Unpack, cast

from numpy.typing import DTypeLike

from ._arguments import bare
from ._handle import wrap
from ._protocols import Protocols

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = ["Methods"]

Axis = SupportsIndex | Sequence[SupportsIndex] | None
Order = Literal["C", "F", "A", "K"] | None
Mode = Literal["raise", "wrap", "clip"]
SortKind = Literal["quicksort", "mergesort", "heapsort", "stable"] | None


class Reduction(TypedDict, total=False):
    """What reductions take by name; NumPy has defaults of its own for what is not given."""

    keepdims: bool
    initial: Any
    where: Any
    mean: Any


class Methods(Protocols):
    """Same names, arguments and results as the methods of `numpy.ndarray`, with Tensors for arrays.

    Results have rank 0 where NumPy returns a scalar, so that they are owned like any other result; ``out`` may be a
    Tensor or a plain array, and is returned itself.
    """

    __slots__ = ()

    def _call(self, method: str, *args: Any, out: Any = None, **options: Any) -> Tensor:
        """Call a method of the array with the arrays of its arguments."""
        array = self._array
        if out is not None:
            getattr(array, method)(*bare(args), out=bare(out), **bare(options))
            return cast("Tensor", out)
        result = getattr(array, method)(*bare(args), **bare(options))
        return cast("Tensor", self) if result is array else wrap(result)

    # ------------------------------------------------------------------ reductions

    def sum(
        self, axis: Axis = None, dtype: DTypeLike | None = None, out: Any = None, **options: Unpack[Reduction]
    ) -> Tensor:
        """Sum over all elements or along axes: see `numpy.ndarray.sum`."""
        return self._call("sum", axis, dtype, out=out, **options)

    def prod(
        self, axis: Axis = None, dtype: DTypeLike | None = None, out: Any = None, **options: Unpack[Reduction]
    ) -> Tensor:
        """Product over all elements or along axes: see `numpy.ndarray.prod`."""
        return self._call("prod", axis, dtype, out=out, **options)

    def mean(
        self, axis: Axis = None, dtype: DTypeLike | None = None, out: Any = None, **options: Unpack[Reduction]
    ) -> Tensor:
        """Arithmetic mean over all elements or along axes: see `numpy.ndarray.mean`."""
        return self._call("mean", axis, dtype, out=out, **options)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: float = 0,
        **options: Unpack[Reduction],
    ) -> Tensor:
        """Standard deviation over all elements or along axes: see `numpy.ndarray.std`."""
        return self._call("std", axis, dtype, out=out, ddof=ddof, **options)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: float = 0,
        **options: Unpack[Reduction],
    ) -> Tensor:
        """Variance over all elements or along axes: see `numpy.ndarray.var`."""
        return self._call("var", axis, dtype, out=out, ddof=ddof, **options)

    def min(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Minimum over all elements or along axes: see `numpy.ndarray.min`."""
        return self._call("min", axis, out=out, **options)

    def max(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Maximum over all elements or along axes: see `numpy.ndarray.max`."""
        return self._call("max", axis, out=out, **options)

    def any(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Whether any element is true, over all elements or along axes: see `numpy.ndarray.any`."""
        return self._call("any", axis, out=out, **options)

    def all(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Whether every element is true, over all elements or along axes: see `numpy.ndarray.all`."""
        return self._call("all", axis, out=out, **options)

    def argmin(self, axis: SupportsIndex | None = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
        """Index of the first minimum: see `numpy.ndarray.argmin`."""
        return self._call("argmin", axis, out=out, keepdims=keepdims)

    def argmax(self, axis: SupportsIndex | None = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
        """Index of the first maximum: see `numpy.ndarray.argmax`."""
        return self._call("argmax", axis, out=out, keepdims=keepdims)

    def cumsum(self, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Tensor:
        """Cumulative sum along an axis: see `numpy.ndarray.cumsum`."""
        return self._call("cumsum", axis, dtype, out=out)

    def cumprod(self, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Tensor:
        """Cumulative product along an axis: see `numpy.ndarray.cumprod`."""
        return self._call("cumprod", axis, dtype, out=out)

    def trace(
        self,
        offset: SupportsIndex = 0,
        axis1: SupportsIndex = 0,
        axis2: SupportsIndex = 1,
        dtype: DTypeLike | None = None,
        out: Any = None,
    ) -> Tensor:
        """Sum along a diagonal: see `numpy.ndarray.trace`."""
        return self._call("trace", offset, axis1, axis2, dtype, out=out)

    # ------------------------------------------------------------------ element by element

    def round(self, decimals: SupportsIndex = 0, out: Any = None) -> Tensor:
        """Elements rounded to a number of decimals: see `numpy.ndarray.round`."""
        return self._call("round", decimals, out=out)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Tensor:
        """Elements limited to an interval: see `numpy.ndarray.clip`."""
        return self._call("clip", min, max, out=out, **options)

    def conj(self) -> Tensor:
        """Complex conjugate; the tensor itself where it is real."""
        return self._call("conj")

    def conjugate(self) -> Tensor:
        """Complex conjugate; the tensor itself where it is real."""
        return self._call("conjugate")

    def dot(self, b: Any, out: Any = None) -> Tensor:
        """Dot product: see `numpy.dot`."""
        return self._call("dot", b, out=out)

    # ------------------------------------------------------------------ selection

    def take(self, indices: Any, axis: SupportsIndex | None = None, out: Any = None, mode: Mode = "raise") -> Tensor:
        """Elements at indices along an axis: see `numpy.ndarray.take`."""
        return self._call("take", indices, axis, out=out, mode=mode)

    def choose(self, choices: Any, out: Any = None, mode: Mode = "raise") -> Tensor:
        """Elements of the choices, selected by this tensor: see `numpy.choose`."""
        return self._call("choose", choices, out=out, mode=mode)

    def compress(self, condition: Any, axis: SupportsIndex | None = None, out: Any = None) -> Tensor:
        """Slices where a condition holds: see `numpy.ndarray.compress`."""
        return self._call("compress", condition, axis, out=out)

    def nonzero(self) -> tuple[Tensor, ...]:
        """Indices of the elements that are not zero, an int64 tensor for each axis."""
        return tuple([wrap(indices) for indices in self._array.nonzero()])

    def searchsorted(self, v: Any, side: Literal["left", "right"] = "left", sorter: Any = None) -> Tensor:
        """Where elements would be inserted to keep this tensor sorted: see `numpy.searchsorted`."""
        return self._call("searchsorted", v, side, sorter)

    def argsort(
        self, axis: SupportsIndex | None = -1, kind: SortKind = None, order: Any = None, *, stable: bool | None = None
    ) -> Tensor:
        """Indices that would sort this tensor: see `numpy.ndarray.argsort`."""
        return self._call("argsort", axis, kind, order, stable=stable)

    def argpartition(
        self, kth: Any, axis: SupportsIndex | None = -1, kind: Literal["introselect"] = "introselect", order: Any = None
    ) -> Tensor:
        """Indices that would partition this tensor: see `numpy.ndarray.argpartition`."""
        return self._call("argpartition", kth, axis, kind, order)

    def repeat(self, repeats: Any, axis: SupportsIndex | None = None) -> Tensor:
        """Elements repeated: see `numpy.ndarray.repeat`."""
        return self._call("repeat", repeats, axis)

    def diagonal(self, offset: SupportsIndex = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> Tensor:
        """A read-only view of a diagonal: see `numpy.ndarray.diagonal`."""
        return self._call("diagonal", offset, axis1, axis2)

    # ------------------------------------------------------------------ in place

    def sort(
        self, axis: SupportsIndex = -1, kind: SortKind = None, order: Any = None, *, stable: bool | None = None
    ) -> None:
        """Sort in place: see `numpy.ndarray.sort`."""
        self._array.sort(axis, kind, order, stable=stable)

    def partition(
        self, kth: Any, axis: SupportsIndex = -1, kind: Literal["introselect"] = "introselect", order: Any = None
    ) -> None:
        """Partition in place: see `numpy.ndarray.partition`."""
        self._array.partition(bare(kth), axis, kind, order)

    def fill(self, value: Any) -> None:
        """Set every element to a value."""
        self._array.fill(bare(value))

    def put(self, indices: Any, values: Any, mode: Mode = "raise") -> None:
        """Set elements by their index in the flattened tensor: see `numpy.ndarray.put`."""
        self._array.put(bare(indices), bare(values), mode)
