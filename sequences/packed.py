"""The packed sequence: a batch of sequences of different lengths in one tensor, as one resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    SupportsIndex,
    TypeAlias,
    cast,
    final,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from ..scopes.functions import dispose
from ..scopes.identity import disposed_error
from ..scopes.kinds import Kind, add_kind
from ..scopes.ownership import born_together
from ..tensors.numpy.alignment import aligned
from ..tensors.tensor.tensor import TENSOR, device_of_numpy, unborn
from .adapter import Array, as_numpy, is_tensor_like

if TYPE_CHECKING:
    from ..tensors.tensor.tensor import Tensor
    from .adapter import TensorLike

__all__ = [
    "PackedSequence",
    "arrays_in",
]

# In the class body ``int`` is a method, so that annotations there need another name.
_Int: TypeAlias = int


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(Sequence["Tensor | None"]):
    """A batch of sequences of different lengths, without padding, as one resource.

    Made by `pack_sequence` and `pack_padded_sequence`, seldom by hand. It behaves as
    ``torch.nn.utils.rnn.PackedSequence``, which is a namedtuple: it unpacks into its four fields,
    can be indexed, compared and replaced in part. Unlike that class it is not a tuple, because it
    is a resource: it counts as one, its fields are its members, and it is moved and disposed as a
    whole.

    Parameters
    ----------
    data : Tensor or array, shape (sum of lengths, *)
        The elements: of all sequences that reach step 0, longest first, then of all that reach step
        1, and so on. Also a pair ``(data, batch_sizes)``, with `batch_sizes` left out.
    batch_sizes : Tensor or array of int64, shape (time,)
        How many sequences reach each step.
    sorted_indices : Tensor or array of int64, shape (batch,), optional
        Which sequence of the batch as it was given stands at each place. None where it was sorted
        as given.
    unsorted_indices : Tensor or array of int64, shape (batch,), optional
        At which place each sequence of the batch as it was given stands; computed from
        `sorted_indices` where left out.

    Raises
    ------
    TypeError
        A field is neither a Tensor nor an array.
    RuntimeError, IndexError
        `sorted_indices` is no permutation of int64, or not one-dimensional.
    DisposedError
        A Tensor given has been disposed.

    Notes
    -----
    Born in the current scope. The fields are handles of its own, which share the memory of what was
    given: a Tensor that was given stays a resource of its own. Once the packed sequence is
    disposed, its fields are disposed Tensors.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.dispose_scope() as scope:
    ...     packed = ds.pack_sequence([ds.arange(3), ds.arange(2)])
    ...     print(packed.data, packed.batch_sizes)
    ...     data, batch_sizes, _, _ = packed
    ...     len(scope), data.tolist()
    [0 0 1 1 2] [2 2 1]
    (1, [0, 0, 1, 1, 2])
    >>> ds.is_disposed(packed), ds.is_disposed(packed.data)
    (True, True)
    """

    __slots__ = ("__dict__", "__weakref__", "_disposed", "_tuple")
    __match_args__ = ("data", "batch_sizes", "sorted_indices", "unsorted_indices")

    _fields: ClassVar[tuple[str, ...]] = _Fields._fields
    _field_defaults: ClassVar[dict[str, Any]] = {}

    _disposed: bool
    _tuple: _Fields

    def __init__(
        self,
        data: TensorLike | Sequence[TensorLike],
        batch_sizes: TensorLike | None = None,
        sorted_indices: TensorLike | None = None,
        unsorted_indices: TensorLike | None = None,
    ) -> None:
        if batch_sizes is None:
            if is_tensor_like(data) or not isinstance(data, (list, tuple)) or len(data) != 2:
                raise TypeError("PackedSequence: without batch_sizes, data must be a pair (data, batch_sizes)")
            data, batch_sizes = data
        unordered = None if sorted_indices is None else as_numpy(sorted_indices, "PackedSequence: sorted_indices")
        ordered = None if unsorted_indices is None else as_numpy(unsorted_indices, "PackedSequence: unsorted_indices")
        if ordered is None and unordered is not None:
            ordered = _checked_inverse(unordered)
        rows = as_numpy(data, "PackedSequence: data")
        self._adopt((rows, as_numpy(batch_sizes, "PackedSequence: batch_sizes"), unordered, ordered))

    def _adopt(self, arrays: Iterable[Array | None]) -> None:
        fields: Any = [None if array is None else unborn(array) for array in arrays]
        self._disposed = False
        self._tuple = _Fields._make(fields)
        born_together(self, PACKED_SEQUENCE)

    @classmethod
    def _of(cls, arrays: Iterable[Array | None]) -> Self:
        """Return a packed sequence of four arrays that are known to fit."""
        self = cls.__new__(cls)
        self._adopt(arrays)
        return self

    # ------------------------------------------------------------------ the fields

    @property
    def data(self) -> Tensor:
        """The elements, shape (sum of lengths, *). A member of this packed sequence."""
        return self._tuple.data

    @property
    def batch_sizes(self) -> Tensor:
        """How many sequences reach each step, shape (time,), int64.

        A member of this packed sequence.
        """
        return self._tuple.batch_sizes

    @property
    def sorted_indices(self) -> Tensor | None:
        """Which sequence stands at each place, shape (batch,), int64, or None.

        A member of this packed sequence.
        """
        return self._tuple.sorted_indices

    @property
    def unsorted_indices(self) -> Tensor | None:
        """At which place each sequence stands, shape (batch,), int64, or None.

        A member of this packed sequence.
        """
        return self._tuple.unsorted_indices

    # ------------------------------------------------------------------ the methods of a namedtuple

    def __len__(self) -> _Int:
        return len(self._tuple)

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter(self._tuple)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Tensor | None: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Tensor | None, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Tensor | tuple[Tensor | None, ...] | None:
        return self._tuple[index]

    def __contains__(self, value: object) -> bool:
        return any(_same(field, value) for field in self._tuple)

    def index(self, value: object, start: SupportsIndex = 0, stop: SupportsIndex = 4) -> _Int:
        """Return the place of the first field that is, or equals, `value`.

        Raises
        ------
        ValueError
            There is none, or the comparison with a field has no single answer.
        """
        for place in range(len(self._tuple))[start:stop]:
            if _same(self._tuple[place], value):
                return place
        raise ValueError(f"{value!r} is not in the {type(self).__qualname__}")

    def count(self, value: object) -> _Int:
        """Return how many fields are, or equal, `value`."""
        return sum(_same(field, value) for field in self._tuple)

    def __add__(self, other: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._tuple + _tuple_of(other)

    def __radd__(self, other: tuple[Any, ...]) -> tuple[Any, ...]:
        return other + self._tuple

    def __mul__(self, times: SupportsIndex) -> tuple[Any, ...]:
        return self._tuple * times

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (tuple, PackedSequence)):
            return NotImplemented
        others = cast("Sequence[Any]", other)
        return len(others) == len(self._tuple) and all(map(_same, self._tuple, others))

    def __lt__(self, other: Any) -> bool:
        return self._tuple < _tuple_of(other)

    def __le__(self, other: Any) -> bool:
        return self._tuple <= _tuple_of(other)

    def __gt__(self, other: Any) -> bool:
        return self._tuple > _tuple_of(other)

    def __ge__(self, other: Any) -> bool:
        return self._tuple >= _tuple_of(other)

    def __hash__(self) -> _Int:
        return hash(self._tuple)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__qualname__}({fields})"

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:
        """Return a packed sequence of four fields in their order."""
        return cls(*iterable)

    def _asdict(self) -> dict[str, Tensor | None]:
        """Return the fields by name."""
        return self._tuple._asdict()

    def _replace(self, **fields: Any) -> Self:
        """Return a copy with some fields replaced; the others share memory with this one."""
        return type(self)(*self._tuple._replace(**fields))

    # ------------------------------------------------------------------ disposal, copies, pickling

    def dispose(self) -> None:
        """Release this packed sequence now, its fields with it, whoever owns it. Idempotent.

        The memory of a field is freed with the last Tensor or array that shares it.
        """
        dispose(self)

    @property
    def disposed(self) -> bool:
        """Whether this packed sequence has been disposed."""
        return self._disposed

    def __copy__(self) -> Self:
        return self._derived(arrays_in(self))

    def __deepcopy__(self, memo: dict[_Int, Any]) -> Self:
        copied = self._derived(tuple(None if array is None else array.copy() for array in arrays_in(self)))
        memo[id(self)] = copied
        return copied

    def _derived(self, arrays: Iterable[Array | None]) -> Self:
        """Return a packed sequence of other arrays, with the attributes of this one."""
        new = type(self)._of(arrays)
        new.__dict__.update(self.__dict__)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), arrays_in(self), self.__dict__ or None)

    # ------------------------------------------------------------------ conversions

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return a packed sequence whose data has another dtype; itself if nothing changes.

        Called as ``torch.Tensor.to``: ``to(dtype)``, ``to(device)``, ``to(device, dtype)``,
        ``to(other)``, each with ``non_blocking=False, copy=False``.

        Parameters
        ----------
        *args, **kwargs
            `dtype` : a NumPy dtype, or an object that converts to one. `device` : ``"cpu"``, the
            only one there is. `other` : a Tensor or array whose dtype is used. `copy` : return a
            new packed sequence even if nothing changes.

        Returns
        -------
        PackedSequence
            With new data; batch sizes and indices share the memory of this one's.

        Raises
        ------
        RuntimeError
            There is no such device.
        TypeError
            An argument is neither a dtype nor a device.
        DisposedError
            This packed sequence has been disposed.
        """
        data, batch_sizes, sorted_indices, unsorted_indices = arrays_in(self)
        dtype, copy = _parse_to(*args, **kwargs)
        if not copy and (dtype is None or dtype == data.dtype):
            return self
        return self._of(
            (data.astype(data.dtype if dtype is None else dtype), batch_sizes, sorted_indices, unsorted_indices)
        )

    def cpu(self, *args: Any, **kwargs: Any) -> Self:
        """As `to`, on the CPU: itself, unless a dtype or ``copy=True`` is given."""
        return self.to(*args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> Self:
        """Raise an error: NumPy arrays are CPU memory.

        Raises
        ------
        RuntimeError
            Always.
        """
        arrays_in(self)
        raise _no_device("cuda")

    def pin_memory(self) -> Self:
        """Raise an error: the memory of NumPy arrays cannot be pinned.

        Raises
        ------
        RuntimeError
            Always.
        """
        arrays_in(self)
        raise RuntimeError(
            "PackedSequence.pin_memory: the memory of a NumPy array cannot be pinned; leave pin_memory=False"
        )

    def is_pinned(self) -> bool:
        """Return False: the memory of NumPy arrays is never pinned."""
        arrays_in(self)
        return False

    @property
    def is_cuda(self) -> bool:
        """False: NumPy arrays are CPU memory."""
        arrays_in(self)
        return False

    def double(self) -> Self:
        """As ``to(np.float64)``."""
        return self.to(dtype=np.float64)

    def float(self) -> Self:
        """As ``to(np.float32)``, as PyTorch understands the word."""
        return self.to(dtype=np.float32)

    def half(self) -> Self:
        """As ``to(np.float16)``."""
        return self.to(dtype=np.float16)

    def long(self) -> Self:
        """As ``to(np.int64)``."""
        return self.to(dtype=np.int64)

    def int(self) -> Self:
        """As ``to(np.int32)``, as PyTorch understands the word."""
        return self.to(dtype=np.int32)

    def short(self) -> Self:
        """As ``to(np.int16)``."""
        return self.to(dtype=np.int16)

    def char(self) -> Self:
        """As ``to(np.int8)``."""
        return self.to(dtype=np.int8)

    def byte(self) -> Self:
        """As ``to(np.uint8)``."""
        return self.to(dtype=np.uint8)


def _tuple_of(other: Any) -> tuple[Any, ...]:
    return other._tuple if isinstance(other, PackedSequence) else other


def _same(field: object, value: object) -> bool:
    """Return whether a field is, or equals, a value, as tuples compare their elements.

    None equals nothing else.
    """
    return field is value or (field is not None and value is not None and bool(field == value))


def arrays_in(packed: PackedSequence) -> tuple[Array, Array, Array | None, Array | None]:
    """Return the arrays of the four fields.

    Raises
    ------
    DisposedError
        The packed sequence, or one of its fields, has been disposed.
    """
    if packed._disposed:
        raise disposed_error(packed, PACKED_SEQUENCE)
    data, batch_sizes, before, after = packed._tuple
    return (
        data._array,
        batch_sizes._array,
        None if before is None else before._array,
        None if after is None else after._array,
    )


@final
class PackedSequenceKind(Kind):
    """The kind of `PackedSequence`: a composite of its fields."""

    cls = PackedSequence
    name = "PackedSequence"

    def release(self, resource: Any, /) -> None:
        """Note the release. The caller releases the members."""
        resource._disposed = True

    def device(self, resource: Any, /) -> object:
        """Return the device of its data."""
        return TENSOR.device(resource._tuple.data)

    def describe(self, resource: Any, /) -> str:
        """Return shape, dtype and name of its data."""
        return f"PackedSequence of {TENSOR.describe(resource._tuple.data)}"

    def members(self, resource: Any, /) -> dict[str, object]:
        """Return the fields that are not None, by name."""
        return {name: member for name, member in resource._asdict().items() if member is not None}

    def is_disposed(self, resource: Any, /) -> bool:
        """Return whether it was released."""
        disposed: bool = resource._disposed
        return disposed


PACKED_SEQUENCE: Final = PackedSequenceKind()
add_kind(PACKED_SEQUENCE)


def _rebuilt(
    cls: type[PackedSequence], arrays: tuple[Array | None, ...], attributes: dict[str, Any] | None
) -> PackedSequence:
    packed = cls._of([None if array is None else aligned(array) for array in arrays])
    if attributes:
        packed.__dict__.update(attributes)
    return packed


def _checked_inverse(permutation: Array) -> NDArray[np.int64]:
    if permutation.ndim != 1:
        raise IndexError(f"PackedSequence: sorted_indices must have one dimension, not shape {permutation.shape}")
    if permutation.dtype != np.int64:
        raise RuntimeError(f"PackedSequence: sorted_indices must be int64, not {permutation.dtype}")
    count = permutation.size
    outside = permutation[(permutation < 0) | (permutation >= count)]
    if outside.size:
        raise RuntimeError(f"PackedSequence: sorted_indices has index {outside[0]}, out of bounds for size {count}")
    if len(set(permutation.tolist())) < count:
        raise RuntimeError("PackedSequence: sorted_indices has an index twice, which is no permutation")
    return np.argsort(permutation)


def _parse_to(
    *args: Any,
    device: object = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    other: object = None,
) -> tuple[np.dtype[Any] | None, bool]:
    """Return dtype and `copy` from the arguments of ``to``. The device is checked."""
    given = list(args)
    if given and (given[0] is None or _is_device(given[0])):
        device = given.pop(0)
    if given and not isinstance(given[0], bool):
        dtype = given.pop(0)
    flags: list[Any] = [*given, *(non_blocking, copy)[len(given) :]]
    if len(flags) != 2 or not all(isinstance(flag, bool) for flag in flags):
        raise TypeError("to: expected (dtype), (device, dtype) or (other), then non_blocking and copy as bool")
    if other is not None:
        dtype = other
    if is_tensor_like(dtype):
        dtype = as_numpy(dtype, "to: other").dtype
    if device is not None:
        try:
            device_of_numpy(device)
        except ValueError:
            raise _no_device(device) from None
    if dtype is None:
        return None, flags[1]
    try:
        wanted: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"to: {dtype!r} is neither a NumPy dtype nor a device") from error
    if wanted.kind not in "biufc":
        raise TypeError(f"to: dtype {wanted} does not hold numbers")
    return wanted, flags[1]


def _is_device(thing: object) -> bool:
    if not isinstance(thing, str):
        return False
    try:
        np.dtype(thing)
    except TypeError:
        return True
    return False


def _no_device(device: object) -> RuntimeError:
    return RuntimeError(f"there is no device {str(device)!r} here: the memory of NumPy's arrays is the CPU's ('cpu')")
