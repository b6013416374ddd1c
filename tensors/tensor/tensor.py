"""`Tensor`: an ndarray that a scope can own.

The sections: Tensors as arguments of NumPy's functions, memory that was exported as plain arrays,
the class itself, and its kind.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypedDict, Unpack, cast, final
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ...scopes.identity import LIVE, Entry, disposed_error, entry_of, release, unit_of
from ...scopes.kinds import Kind, add_kind
from ...scopes.ownership import born
from ..numpy.alignment import aligned, alignment_of, served
from ..numpy.storage import AliasBase, storage_of

__all__ = [
    "TENSOR",
    "ExportedStorage",
    "Tensor",
    "bare",
    "defers",
    "dressed",
    "exported_identities",
    "exported_storages",
    "live_arrays",
    "overrides",
    "unborn",
    "wrap",
]

# Tensors as arguments of NumPy's functions: their arrays on the way in, Tensors on the way out.


PLAIN: Final[frozenset[type]] = frozenset(
    {np.ndarray, int, float, bool, complex, str, bytes, list, tuple, type(None), *np.sctypeDict.values()}
)
"""Types of operands that NumPy computes with itself."""

PRIORITY: Final = 1.0
"""The ``__array_priority__`` of Tensors: arrays have 0; an operand with more computes itself."""

_ATOMS: Final = PLAIN - {list, tuple}
"""Types of operands that hold no Tensor."""
_LEAVES: Final[tuple[Any, ...]] = (np.ndarray, np.generic, str, bytes, bytearray, memoryview, range)
"""Classes whose instances, also of subclasses, hold no Tensor that has to be replaced."""
_ARRAY: Final[Any] = np.ndarray
_SCALAR: Final[Any] = np.generic
_TUPLE: Final[Any] = tuple
_ABSENT: Final = object()
_DLPACK_HAS_VERSIONS: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def bare(value: Any, given: dict[int, Any] | None = None) -> Any:
    """Return a value with each Tensor replaced by its array, in sequences and dicts too.

    Parameters
    ----------
    value : object
        A Tensor, or a container, or anything else, which is returned as it is.
    given : dict, optional
        Gets each Tensor that was met, by the ``id`` of its array.
    """
    if isinstance(value, Tensor):
        array = value._array
        if given is not None:
            given[id(array)] = value
        return array
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls in _ATOMS or isinstance(value, _LEAVES):
        return value
    if cls is list:
        return [item if type(item) in _ATOMS else bare(item, given) for item in value]
    if cls is tuple:
        return tuple([item if type(item) in _ATOMS else bare(item, given) for item in value])
    if cls is dict:
        return {key: bare(item, given) for key, item in value.items()}
    if issubclass(cls, Sequence):
        # Copy a namedtuple or a deque only if it holds a Tensor.
        before: list[Any] = list(value)
        after = [bare(item, given) for item in before]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            return tuple(after) if issubclass(cls, tuple) else after
    return value


def overrides(cls: type) -> bool:
    """Return whether a type overrides ufuncs. Arrays, Tensors and types without a method do not."""
    method = getattr(cls, "__array_ufunc__", _ABSENT)
    return method is not _ABSENT and method is not np.ndarray.__array_ufunc__ and not issubclass(cls, Tensor)


def defers(other: object) -> bool:
    """Return whether an operator defers to the other operand, by NEP 13 or ``__array_priority__``.

    It defers to a subclass of ndarray, as the operator of an ndarray does.
    """
    cls = type(other)
    if issubclass(cls, _ARRAY):
        return True
    if hasattr(cls, "__array_ufunc__"):
        return overrides(cls)
    priority = getattr(cls, "__array_priority__", 0.0)
    return isinstance(priority, (int, float)) and priority > PRIORITY


def dressed(result: Any, given: dict[int, Any]) -> Any:
    """Return a result of NumPy with its arrays and scalars made Tensors, in containers too.

    Parameters
    ----------
    result : object
        The result of NumPy. Python's own numbers and strings, and instances of subclasses of
        ndarray, stay as they are.
    given : dict
        By the ``id`` of its array, each Tensor that the caller gave. It is returned itself if NumPy
        returned its array.
    """
    cls: Any = type(result)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is _ARRAY:
        known = given.get(id(result))
        return wrap(result) if known is None else known
    if cls is tuple:
        return tuple([dressed(item, given) for item in result])
    if cls is list:
        return [dressed(item, given) for item in result]
    if cls is dict:
        return {key: dressed(item, given) for key, item in result.items()}
    if isinstance(result, _SCALAR):
        return wrap(result)
    if isinstance(result, _TUPLE) and hasattr(cls, "_fields"):
        return cls(*[dressed(item, given) for item in result])
    return given.get(id(result), result) if issubclass(cls, _ARRAY) else result


# Exports: plain arrays over the memory of a Tensor, which are tracked as long as they are used.


@final
@dataclass(frozen=True, slots=True)
class ExportedStorage:
    """A storage that plain arrays, DLPack consumers or buffers still refer to after an export.

    Attributes
    ----------
    nbytes : int
        The bytes of the whole storage.
    aliases : int
        How many exports of it are alive. Views of one export count as one.
    escaped : bool
        Whether a Tensor that it was exported from has been disposed, or is gone.
    resource : str
        The description of the Tensor at its last export.
    """

    nbytes: int
    aliases: int
    escaped: bool
    resource: str


@final
class _Export(ref[Any]):
    """A weak reference to the object that all views of one export keep alive.

    Attributes
    ----------
    key : int
        The ``id`` of that object.
    storage, nbytes : int
        The identity and the bytes of the storage.
    exporter : callable
        A weak reference to the Tensor.
    shown : LastState
        Shape, dtype and name of the Tensor, for a description.
    """

    __slots__ = ("exporter", "key", "nbytes", "shown", "storage")

    key: int
    storage: int
    nbytes: int
    exporter: Callable[[], Tensor | None]
    shown: tuple[tuple[int, ...], np.dtype[Any], str | None]


_EXPORTS: Final[dict[int, _Export]] = {}
"""The exports that are in use, by their key."""


def _forget(export: _Export, exports: dict[int, _Export] = _EXPORTS) -> None:
    exports.pop(export.key, None)


def export(handle: Tensor) -> NDArray[Any]:
    """Return an array over the memory of a Tensor.

    The memory counts as exported until the array and all its views are gone.

    Parameters
    ----------
    handle : Tensor
        The Tensor; it is referred to weakly.

    Returns
    -------
    numpy.ndarray
        The alias: same shape, dtype, strides and writeability.

    Raises
    ------
    DisposedError
        The Tensor has been disposed.
    """
    array = handle._array
    alias, followed = _alias_of(array)
    if followed is None:
        return alias
    entry = _Export(followed, _forget)
    entry.key = id(followed)
    entry.storage, entry.nbytes = storage_of(array)
    entry.exporter = ref(handle)
    entry.shown = (array.shape, array.dtype, handle._name)
    _EXPORTS[entry.key] = entry
    return alias


def _alias_of(array: NDArray[Any]) -> tuple[NDArray[Any], object | None]:
    """Return an alias, and the object that lives as long as its views; None without elements."""
    if array.size == 0:
        return array.view(), None
    between: AliasBase | None = None
    try:
        between = AliasBase(array)
        alias: NDArray[Any] = np.asarray(between)
        if alias.dtype != array.dtype:
            alias = alias.view(array.dtype)
    except (TypeError, ValueError):
        # The array interface cannot describe this dtype (StringDType; objects at odd offsets). Then
        # only the alias itself is tracked, and not a view that outlives it.
        alias = array.view()
        return alias, alias
    return alias, between


def exported_identities() -> set[int]:
    """Return the identities of the storages that `exported_storages` lists."""
    return {entry.storage for entry in list(_EXPORTS.values()) if entry() is not None}


def exported_storages() -> tuple[ExportedStorage, ...]:
    """Return the storages of Tensors of which an exported alias is alive, each once.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.dispose_scope():
    ...     alias = ds.zeros(10, name="weights").numpy()
    >>> [(storage.nbytes, storage.aliases, storage.escaped) for storage in exported_storages()]
    [(80, 1, True)]
    >>> del alias
    >>> exported_storages()
    ()
    """
    found: dict[int, ExportedStorage] = {}
    for entry in list(_EXPORTS.values()):
        if entry() is None:
            continue
        exporter = entry.exporter()
        escaped = exporter is None or exporter.disposed
        before = found.get(entry.storage)
        if before is not None:
            escaped = escaped or before.escaped
        aliases = 1 if before is None else before.aliases + 1
        found[entry.storage] = ExportedStorage(entry.nbytes, aliases, escaped, tensor_text(*entry.shown))
    return tuple(found.values())


# Operators compute with the arrays directly, which is quicker than through the ufunc protocol.
_python: Final[Any] = operator
_numpy: Final[Any] = np


# NumPy's protocols: ufuncs, functions, conversion to arrays, and DLPack.


_WITH_LIKE: Final = frozenset(
    {"arange", "array", "asanyarray", "asarray", "ascontiguousarray", "asfortranarray", "empty", "eye", "frombuffer"}
    | {"fromfile", "fromfunction", "fromiter", "fromstring", "full", "genfromtxt", "identity", "loadtxt", "ones"}
    | {"require", "tri", "zeros"}
)
"""Functions that NumPy passes to ``__array_function__`` for ``like=``, which it has removed."""


def _targets(out: Any) -> tuple[Any, ...]:
    """Return the argument ``out`` as a tuple."""
    return out if type(out) is tuple else (out,)  # pyright: ignore[reportUnknownVariableType] (from Any)


def _result(array: Any, target: Any) -> Any:
    """Return the result of a ufunc: the caller's target, a Tensor, or a subclass of ndarray."""
    if target is not None:
        return target
    return array if isinstance(array, _ARRAY) and type(array) is not _ARRAY else wrap(array)


# The methods of an ndarray that compute, select and reorder.


Axis = SupportsIndex | Sequence[SupportsIndex] | None
Order = Literal["C", "F", "A", "K"] | None
Mode = Literal["raise", "wrap", "clip"]
SortKind = Literal["quicksort", "mergesort", "heapsort", "stable"] | None


class Reduction(TypedDict, total=False):
    """The named arguments of reductions; NumPy has defaults for those that are not given."""

    keepdims: bool
    initial: Any
    where: Any
    mean: Any


# The attributes of an ndarray, its views and conversions.


def device_of_numpy(device: object) -> Literal["cpu"]:
    """Return NumPy's name of a device that arrays can live on.

    Raises
    ------
    ValueError
        The device is no CPU.
    """
    if str(device).strip().lower() not in ("cpu", "cpu:0"):
        raise ValueError(f"a Tensor lives on the CPU; there is no device {device!r} for it")
    return "cpu"


# `Tensor`: an ndarray that a scope can own.


_SINGLE: Final = frozenset({int, slice, type(None), type(...)})
"""Types of keys that hold no Tensor."""


def _element(array: NDArray[Any], key: Any) -> Any:
    """Return an element, or a Tensor, of an array of objects or records.

    An object is returned itself, and a record of rank 0 as a view.
    """
    keys: tuple[Any, ...] = key if type(key) is tuple else (key,)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if isinstance(key, (str, list)) or any(part is ... for part in keys):
        return wrap(array[key])
    found: Any = array[(*keys, ...)]
    return found.item() if array.dtype.char == "O" and not found.ndim else wrap(found)


def _rebuilt(array: NDArray[Any], name: str | None) -> Tensor:
    return wrap(aligned(array), name)


LastState = tuple[tuple[int, ...], np.dtype[Any], str | None]
"""Shape, dtype and name of a Tensor, kept to describe it after its disposal."""


@final
class Tensor:
    """A thin owned handle around an ndarray that a scope can release.

    Operators, indexing, NumPy's functions and the methods of ndarrays return Tensors, born in the
    current scope; where NumPy returns a scalar, a Tensor of rank 0. Arrays and Python numbers in an
    operation with a Tensor are promoted as by NumPy.

    A Tensor that has been disposed raises `DisposedError` on every path but ``dispose()``,
    ``disposed``, ``repr`` and ``hash``. Its memory is freed with its last view or exported alias.
    Tensors are hashed by identity, and compared element by element.

    Parameters
    ----------
    data : array_like
        Copied; nested sequences may hold Tensors.
    dtype : dtype_like, optional
        The type of the elements; found from the data where left out.
    name : str, optional
        Shown in messages and reports.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.dispose_scope() as scope:
    ...     t = ds.Tensor([[1.0, 2.0], [3.0, 4.0]])
    ...     means = scope.move_to_outer(t.mean(axis=0))
    >>> means
    Tensor([2., 3.])
    >>> t + 1  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    disposescope.DisposedError: Tensor shape=(2, 2) dtype=float64 has been disposed ...
    """

    __slots__ = ("__weakref__", "_array", "_last_state", "_name")

    _array: NDArray[Any]
    _name: str | None
    _last_state: LastState | None

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            # Python calls this only for empty slots and for names that do not exist.
            if attribute == "_array":
                raise disposed_error(self, TENSOR)
            if attribute == "_name" or attribute == "_last_state":
                return None
            raise AttributeError(f"{type(self).__qualname__!r} object has no attribute {attribute!r}")

    @property
    def disposed(self) -> bool:
        """Return whether this tensor has been disposed.

        Then everything but this, `dispose`, ``repr`` and ``hash`` raises.
        """
        return array_of(self) is None

    @property
    def name(self) -> str | None:
        """Return the name that messages and reports show, or None."""
        _ = self._array
        return self._name

    def dispose(self) -> None:
        """Release this tensor now, whoever owns it. Idempotent.

        The memory is freed with its last view or exported alias. A member of a composite is
        disposed with its composite.

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

    __array_priority__ = PRIORITY

    # By identity, although ``==`` compares element by element.
    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Tensor:
        return self._with(_python.add, other)

    def __sub__(self, other: Any) -> Tensor:
        return self._with(_python.sub, other)

    def __mul__(self, other: Any) -> Tensor:
        return self._with(_python.mul, other)

    def __truediv__(self, other: Any) -> Tensor:
        return self._with(_python.truediv, other)

    def __floordiv__(self, other: Any) -> Tensor:
        return self._with(_python.floordiv, other)

    def __mod__(self, other: Any) -> Tensor:
        return self._with(_python.mod, other)

    def __pow__(self, other: Any) -> Tensor:
        return self._with(_python.pow, other)

    def __matmul__(self, other: Any) -> Tensor:
        return self._with(_python.matmul, other)

    def __lshift__(self, other: Any) -> Tensor:
        return self._with(_python.lshift, other)

    def __rshift__(self, other: Any) -> Tensor:
        return self._with(_python.rshift, other)

    def __and__(self, other: Any) -> Tensor:
        return self._with(_python.and_, other)

    def __xor__(self, other: Any) -> Tensor:
        return self._with(_python.xor, other)

    def __or__(self, other: Any) -> Tensor:
        return self._with(_python.or_, other)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        array = self._array
        if isinstance(other, Tensor):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented
        quotient, remainder = divmod(array, other)
        return wrap(quotient), wrap(remainder)

    def __radd__(self, other: Any) -> Tensor:
        return self._after(_python.add, other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._after(_python.sub, other)

    def __rmul__(self, other: Any) -> Tensor:
        return self._after(_python.mul, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._after(_python.truediv, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self._after(_python.floordiv, other)

    def __rmod__(self, other: Any) -> Tensor:
        return self._after(_python.mod, other)

    def __rpow__(self, other: Any) -> Tensor:
        return self._after(_python.pow, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return self._after(_python.matmul, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return self._after(_python.lshift, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return self._after(_python.rshift, other)

    def __rand__(self, other: Any) -> Tensor:
        return self._after(_python.and_, other)

    def __rxor__(self, other: Any) -> Tensor:
        return self._after(_python.xor, other)

    def __ror__(self, other: Any) -> Tensor:
        return self._after(_python.or_, other)

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented  # type: ignore[no-any-return]  # mypy knows it of other operators
        pair: Any = divmod(other, array)
        return wrap(pair[0]), wrap(pair[1])

    def __lt__(self, other: Any) -> Tensor:
        return self._with(_python.lt, other)

    def __le__(self, other: Any) -> Tensor:
        return self._with(_python.le, other)

    def __gt__(self, other: Any) -> Tensor:
        return self._with(_python.gt, other)

    def __ge__(self, other: Any) -> Tensor:
        return self._with(_python.ge, other)

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]  # by element, as arrays do
        return self._with(_python.eq, other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]  # by element, as arrays do
        return self._with(_python.ne, other)

    def __neg__(self) -> Tensor:
        return wrap(-self._array)

    def __pos__(self) -> Tensor:
        return wrap(+self._array)

    def __invert__(self) -> Tensor:
        return wrap(~self._array)

    def __abs__(self) -> Tensor:
        return wrap(abs(self._array))

    def __iadd__(self, other: Any) -> Tensor:
        return self._in_place(_python.iadd, _numpy.add, other)

    def __isub__(self, other: Any) -> Tensor:
        return self._in_place(_python.isub, _numpy.subtract, other)

    def __imul__(self, other: Any) -> Tensor:
        return self._in_place(_python.imul, _numpy.multiply, other)

    def __itruediv__(self, other: Any) -> Tensor:
        return self._in_place(_python.itruediv, _numpy.true_divide, other)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self._in_place(_python.ifloordiv, _numpy.floor_divide, other)

    def __imod__(self, other: Any) -> Tensor:
        return self._in_place(_python.imod, _numpy.remainder, other)

    def __ipow__(self, other: Any) -> Tensor:
        return self._in_place(_python.ipow, _numpy.power, other)

    def __imatmul__(self, other: Any) -> Tensor:
        return self._in_place(_python.imatmul, _numpy.matmul, other)

    def __ilshift__(self, other: Any) -> Tensor:
        return self._in_place(_python.ilshift, _numpy.left_shift, other)

    def __irshift__(self, other: Any) -> Tensor:
        return self._in_place(_python.irshift, _numpy.right_shift, other)

    def __iand__(self, other: Any) -> Tensor:
        return self._in_place(_python.iand, _numpy.bitwise_and, other)

    def __ixor__(self, other: Any) -> Tensor:
        return self._in_place(_python.ixor, _numpy.bitwise_xor, other)

    def __ior__(self, other: Any) -> Tensor:
        return self._in_place(_python.ior, _numpy.bitwise_or, other)

    def _with(self, operate: Callable[[Any, Any], Any], other: Any) -> Tensor:
        """Return the result of an operator with this Tensor as the left operand."""
        array = self._array
        if isinstance(other, Tensor):
            other = other._array
        elif type(other) not in PLAIN and defers(other):
            return NotImplemented  # type: ignore[no-any-return]  # mypy knows it of operators
        return wrap(operate(array, other))

    def _after(self, operate: Callable[[Any, Any], Any], other: Any) -> Tensor:
        """Return the result of an operator with this Tensor as the right operand.

        The left operand is no Tensor: its own operator would have been called.
        """
        array = self._array
        if type(other) not in PLAIN and defers(other):
            return NotImplemented  # type: ignore[no-any-return]  # mypy knows it of operators
        return wrap(operate(other, array))

    def _in_place(self, operate: Callable[[Any, Any], Any], ufunc: Callable[..., Any], other: Any) -> Tensor:
        """Compute into this tensor's memory, as an ndarray does: shape and dtype stay."""
        array = self._array
        if isinstance(other, Tensor):
            operate(array, other._array)
        elif type(other) in PLAIN:
            operate(array, other)
        elif overrides(type(other)):  # pyright: ignore[reportUnknownArgumentType] (from Any)
            ufunc(self, other, out=self)
        else:
            ufunc(array, other, out=array)
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        for value in inputs:
            if isinstance(value, Tensor):
                value = value._array
            elif type(value) not in PLAIN and overrides(type(value)):  # pyright: ignore[reportUnknownArgumentType] (from Any)
                return NotImplemented
            arrays.append(value)
        if method == "at":
            return ufunc.at(arrays[0], *bare(arrays[1:]))
        targets: tuple[Any, ...] | None = kwargs.get("out")
        if kwargs:
            if targets is not None and any(overrides(type(target)) for target in targets):  # pyright: ignore[reportUnknownArgumentType] (from Any)
                return NotImplemented
            kwargs = {option: bare(value) for option, value in kwargs.items()}
        result: Any = getattr(ufunc, method)(*arrays, **kwargs)
        if ufunc.nout == 1:
            return _result(result, None if targets is None else targets[0])
        return tuple([_result(*pair) for pair in zip(result, targets or (None,) * ufunc.nout, strict=True)])

    def __array_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        for cls in types:
            if not issubclass(cls, (Tensor, np.ndarray)):
                return NotImplemented
        # Raises for a disposed Tensor, also if it is only the argument ``like=``.
        _ = self._array
        given: dict[int, Any] = {}
        arguments, options = bare(args, given), bare(dict(kwargs), given)
        if not given and func.__name__ not in _WITH_LIKE:
            # The Tensor is in an unknown container: calling the function would recurse without end.
            return NotImplemented
        out = kwargs.get("out")
        if out is not None:
            given.update((id(target), target) for target in _targets(out) if not isinstance(target, Tensor))
        return dressed(func(*arguments, **options), given)

    def numpy(self) -> NDArray[Any]:
        """Return a plain array that shares this tensor's memory, without a copy.

        It stays valid after the tensor is disposed: the memory is freed with the last of its
        aliases. Until then it counts as exported, and as escaped once the tensor is disposed.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.dispose_scope():
        ...     alias = ds.arange(3).numpy()
        >>> alias
        array([0, 1, 2])
        """
        return export(self)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self._array
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"a Tensor of dtype {array.dtype} becomes an array of {np.dtype(dtype)} by a copy only"
                )
            return array.astype(dtype)
        return array.copy() if copy else self.numpy()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        options: dict[str, Any] = {"stream": stream, "dl_device": dl_device, "copy": copy}
        if _DLPACK_HAS_VERSIONS:
            options["max_version"] = max_version
        return self.numpy().__dlpack__(**{name: value for name, value in options.items() if value is not None})

    def __dlpack_device__(self) -> tuple[Literal[1], Literal[0]]:
        _ = self._array
        return 1, 0

    def __bytes__(self) -> bytes:
        return self._array.tobytes()

    def _call(self, method: str, *args: Any, out: Any = None, **options: Any) -> Tensor:
        """Call a method of the array with the arrays of its arguments."""
        array = self._array
        if out is not None:
            getattr(array, method)(*bare(args), out=bare(out), **bare(options))
            return cast("Tensor", out)
        result = getattr(array, method)(*bare(args), **bare(options))
        return self if result is array else wrap(result)

    # ------------------------------------------------------------------ reductions

    def sum(
        self, axis: Axis = None, dtype: DTypeLike | None = None, out: Any = None, **options: Unpack[Reduction]
    ) -> Tensor:
        """Return the sum over all elements or along axes: see `numpy.ndarray.sum`."""
        return self._call("sum", axis, dtype, out=out, **options)

    def prod(
        self, axis: Axis = None, dtype: DTypeLike | None = None, out: Any = None, **options: Unpack[Reduction]
    ) -> Tensor:
        """Return the product over all elements or along axes: see `numpy.ndarray.prod`."""
        return self._call("prod", axis, dtype, out=out, **options)

    def mean(
        self, axis: Axis = None, dtype: DTypeLike | None = None, out: Any = None, **options: Unpack[Reduction]
    ) -> Tensor:
        """Return the mean over all elements or along axes: see `numpy.ndarray.mean`."""
        return self._call("mean", axis, dtype, out=out, **options)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: float = 0,
        **options: Unpack[Reduction],
    ) -> Tensor:
        """Return the standard deviation over all or along axes: see `numpy.ndarray.std`."""
        return self._call("std", axis, dtype, out=out, ddof=ddof, **options)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: float = 0,
        **options: Unpack[Reduction],
    ) -> Tensor:
        """Return the variance over all elements or along axes: see `numpy.ndarray.var`."""
        return self._call("var", axis, dtype, out=out, ddof=ddof, **options)

    def min(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Return the minimum over all elements or along axes: see `numpy.ndarray.min`."""
        return self._call("min", axis, out=out, **options)

    def max(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Return the maximum over all elements or along axes: see `numpy.ndarray.max`."""
        return self._call("max", axis, out=out, **options)

    def any(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Return whether any element is true, over all or along axes: see `numpy.ndarray.any`."""
        return self._call("any", axis, out=out, **options)

    def all(self, axis: Axis = None, out: Any = None, **options: Unpack[Reduction]) -> Tensor:
        """Return whether all elements are true, over all or along axes: see `numpy.ndarray.all`."""
        return self._call("all", axis, out=out, **options)

    def argmin(self, axis: SupportsIndex | None = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
        """Return the index of the first minimum: see `numpy.ndarray.argmin`."""
        return self._call("argmin", axis, out=out, keepdims=keepdims)

    def argmax(self, axis: SupportsIndex | None = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
        """Return the index of the first maximum: see `numpy.ndarray.argmax`."""
        return self._call("argmax", axis, out=out, keepdims=keepdims)

    def cumsum(self, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Tensor:
        """Return the cumulative sum along an axis: see `numpy.ndarray.cumsum`."""
        return self._call("cumsum", axis, dtype, out=out)

    def cumprod(self, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Tensor:
        """Return the cumulative product along an axis: see `numpy.ndarray.cumprod`."""
        return self._call("cumprod", axis, dtype, out=out)

    def trace(
        self,
        offset: SupportsIndex = 0,
        axis1: SupportsIndex = 0,
        axis2: SupportsIndex = 1,
        dtype: DTypeLike | None = None,
        out: Any = None,
    ) -> Tensor:
        """Return the sum along a diagonal: see `numpy.ndarray.trace`."""
        return self._call("trace", offset, axis1, axis2, dtype, out=out)

    # ------------------------------------------------------------------ element by element

    def round(self, decimals: SupportsIndex = 0, out: Any = None) -> Tensor:
        """Return the elements rounded to a number of decimals: see `numpy.ndarray.round`."""
        return self._call("round", decimals, out=out)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Tensor:
        """Return the elements limited to an interval: see `numpy.ndarray.clip`."""
        return self._call("clip", min, max, out=out, **options)

    def conj(self) -> Tensor:
        """Return the complex conjugate; the tensor itself if it is real."""
        return self._call("conj")

    def conjugate(self) -> Tensor:
        """Return the complex conjugate; the tensor itself if it is real."""
        return self._call("conjugate")

    def dot(self, b: Any, out: Any = None) -> Tensor:
        """Return the dot product: see `numpy.dot`."""
        return self._call("dot", b, out=out)

    # ------------------------------------------------------------------ selection

    def take(self, indices: Any, axis: SupportsIndex | None = None, out: Any = None, mode: Mode = "raise") -> Tensor:
        """Return the elements at indices along an axis: see `numpy.ndarray.take`."""
        return self._call("take", indices, axis, out=out, mode=mode)

    def choose(self, choices: Any, out: Any = None, mode: Mode = "raise") -> Tensor:
        """Return elements of the choices, selected by this tensor: see `numpy.choose`."""
        return self._call("choose", choices, out=out, mode=mode)

    def compress(self, condition: Any, axis: SupportsIndex | None = None, out: Any = None) -> Tensor:
        """Return the slices where a condition holds: see `numpy.ndarray.compress`."""
        return self._call("compress", condition, axis, out=out)

    def nonzero(self) -> tuple[Tensor, ...]:
        """Return the indices of the elements that are not zero, an int64 tensor for each axis."""
        return tuple([wrap(indices) for indices in self._array.nonzero()])

    def searchsorted(self, v: Any, side: Literal["left", "right"] = "left", sorter: Any = None) -> Tensor:
        """Return where to insert elements in this sorted tensor: see `numpy.searchsorted`."""
        return self._call("searchsorted", v, side, sorter)

    def argsort(
        self, axis: SupportsIndex | None = -1, kind: SortKind = None, order: Any = None, *, stable: bool | None = None
    ) -> Tensor:
        """Return the indices that would sort this tensor: see `numpy.ndarray.argsort`."""
        return self._call("argsort", axis, kind, order, stable=stable)

    def argpartition(
        self, kth: Any, axis: SupportsIndex | None = -1, kind: Literal["introselect"] = "introselect", order: Any = None
    ) -> Tensor:
        """Return the indices that would partition it: see `numpy.ndarray.argpartition`."""
        return self._call("argpartition", kth, axis, kind, order)

    def repeat(self, repeats: Any, axis: SupportsIndex | None = None) -> Tensor:
        """Return the elements repeated: see `numpy.ndarray.repeat`."""
        return self._call("repeat", repeats, axis)

    def diagonal(self, offset: SupportsIndex = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> Tensor:
        """Return a read-only view of a diagonal: see `numpy.ndarray.diagonal`."""
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

    # ------------------------------------------------------------------ attributes

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of each axis."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the elements."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self._array.size

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return self._array.itemsize

    @property
    def nbytes(self) -> int:
        """Return the bytes of the elements; the storage behind a view may be larger."""
        return self._array.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the bytes to step along each axis."""
        return self._array.strides

    @property
    def flags(self) -> Any:
        """Return layout and writeability: see `numpy.ndarray.flags`."""
        return self._array.flags

    @property
    def device(self) -> str:
        """Return the normalised name of the device: always ``"cpu:0"``."""
        _ = self._array
        return "cpu:0"

    @property
    def alignment(self) -> int:
        """Return the largest power of two that divides the address of the first element.

        At least 64 for what the constructors make, and for all that is born in a scope and no view.
        """
        return alignment_of(self._array)

    @property
    def data(self) -> memoryview:
        """Return the memory as a buffer; an export, as `numpy` makes them."""
        return self.numpy().data

    @property
    def ctypes(self) -> Any:
        """Return the address for `ctypes`; an export, as `numpy` makes them."""
        return self.numpy().ctypes

    @property
    def flat(self) -> np.flatiter[Any]:
        """Return an iterator over the elements in C order; an export, as `numpy` makes them."""
        return self.numpy().flat

    @flat.setter
    def flat(self, values: Any) -> None:
        array: Any = self._array
        array.flat = bare(values)

    @property
    def T(self) -> Tensor:
        """Return a view with the axes reversed."""
        return wrap(self._array.T)

    @property
    def mT(self) -> Tensor:
        """Return a view with the last two axes swapped."""
        return wrap(self._array.mT)

    @property
    def real(self) -> Tensor:
        """Return the real part as a view; the tensor itself if it is real."""
        return self._part("real")

    @real.setter
    def real(self, values: Any) -> None:
        self._array.real = bare(values)

    @property
    def imag(self) -> Tensor:
        """Return the imaginary part as a view; read-only zeros if the tensor is real."""
        return self._part("imag")

    @imag.setter
    def imag(self, values: Any) -> None:
        self._array.imag = bare(values)

    def _part(self, attribute: str) -> Tensor:
        array = self._array
        part = getattr(array, attribute)
        return self if part is array else wrap(part)

    def setflags(self, *, write: bool) -> None:
        """Make the tensor writeable or read-only, if its memory allows that."""
        self._array.setflags(write=write)

    # ------------------------------------------------------------------ views

    def reshape(
        self,
        *shape: SupportsIndex | Sequence[SupportsIndex],
        order: Literal["C", "F", "A"] | None = "C",
        copy: bool | None = None,
    ) -> Tensor:
        """Return the elements in another shape, a view if possible: see `numpy.ndarray.reshape`."""
        array: Any = self._array
        # NumPy 2.0 does not know `copy`.
        options = {} if copy is None else {"copy": copy}
        return wrap(array.reshape(*bare(shape), order=order, **options))

    def ravel(self, order: Order = "C") -> Tensor:
        """Return the elements along one axis, as a view if possible: see `numpy.ndarray.ravel`."""
        return wrap(self._array.ravel(order))

    def transpose(self, *axes: SupportsIndex | Sequence[SupportsIndex] | None) -> Tensor:
        """Return a view with the axes permuted: see `numpy.ndarray.transpose`."""
        array: Any = self._array
        return wrap(array.transpose(*axes))

    def swapaxes(self, axis1: SupportsIndex, axis2: SupportsIndex) -> Tensor:
        """Return a view with two axes swapped."""
        return wrap(self._array.swapaxes(axis1, axis2))

    def squeeze(self, axis: SupportsIndex | tuple[SupportsIndex, ...] | None = None) -> Tensor:
        """Return a view without axes of size one: see `numpy.ndarray.squeeze`."""
        return wrap(self._array.squeeze(axis))

    def view(self, dtype: DTypeLike | None = None) -> Tensor:
        """Return a view of the same memory, as elements of another dtype if one is given.

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
        """Return a view of some bytes of each element: see `numpy.ndarray.getfield`."""
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
        """Return the elements as another dtype: see `numpy.ndarray.astype`.

        With ``copy=False`` the tensor itself is returned if it has the dtype.
        """
        return self._call("astype", dtype, order, casting, subok, copy)

    def copy(self, order: Order = "C") -> Tensor:
        """Return a copy with memory of its own."""
        return wrap(served(self._array.copy, order))

    def flatten(self, order: Order = "C") -> Tensor:
        """Return a copy along one axis."""
        return wrap(served(self._array.flatten, order))

    def byteswap(self, inplace: bool = False) -> Tensor:
        """Return the elements with their bytes reversed: see `numpy.ndarray.byteswap`."""
        return self._call("byteswap", inplace)

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """Return the tensor itself: ``"cpu"`` is the only device."""
        self._array.to_device(device_of_numpy(device), stream=stream)
        return self

    def item(self, *index: Any) -> Any:
        """Return one element as a Python object: see `numpy.ndarray.item`."""
        return self._array.item(*bare(index))

    def tolist(self) -> Any:
        """Return the elements as Python objects in nested lists."""
        return self._array.tolist()

    def tobytes(self, order: Order = "C") -> bytes:
        """Return the bytes of the elements."""
        return self._array.tobytes(order)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the elements to a file: see `numpy.ndarray.tofile`."""
        self._array.tofile(fid, sep, format)

    def __new__(cls, data: ArrayLike | Tensor, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """Return a new Tensor with a copy of the data, born in the current scope."""
        given = bare(data)
        if type(given) not in PLAIN and hasattr(given, "__array__"):
            # np.array() would pass ``copy``, which PyTorch's ``__array__`` does not accept.
            given = np.asarray(given, dtype)
        return wrap(served(np.array, given, dtype), name)

    # ------------------------------------------------------------------ elements

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        """Return a view for a basic index, or a copy for an element or an array of indices.

        Elements of dtype object are returned themselves, and a record is a view, as with ndarrays.
        """
        array = self._array
        if type(key) not in _SINGLE:
            key = bare(key)
        if array.dtype.char in "OV":
            return _element(array, key)
        return wrap(array[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        array = self._array
        if type(key) not in _SINGLE:
            key = bare(key)
        array[key] = value if array.dtype.char == "O" else bare(value)

    def __iter__(self) -> Iterator[Any]:
        if not self._array.ndim:
            raise TypeError("iteration over a tensor of rank 0")
        return self._elements()

    def _elements(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __contains__(self, value: object) -> bool:
        return bool(np.any(self._array == bare(value)))

    # ------------------------------------------------------------------ Python's numbers

    def __bool__(self) -> bool:
        return bool(self._array)

    def __int__(self) -> int:
        return int(self._array)

    def __float__(self) -> float:
        return float(self._array)

    def __complex__(self) -> complex:
        return complex(self._array)

    def __index__(self) -> int:
        return self._array.__index__()

    def __trunc__(self) -> int:
        return int(self._array)

    def __round__(self, ndigits: int | None = None) -> Any:
        array = self._array
        if ndigits is None and not array.ndim:
            return round(array.item())
        return self.round(0 if ndigits is None else ndigits)

    # ------------------------------------------------------------------ text

    def __repr__(self) -> str:
        array = array_of(self)
        if array is None:
            return f"<disposed {describe(self)}>"
        text = np.array_repr(array).removeprefix("array").replace("\n", "\n ")
        return f"Tensor{text}" if self._name is None else f"Tensor{text[:-1]}, name={self._name!r})"

    def __str__(self) -> str:
        return str(self._array)

    def __format__(self, spec: str) -> str:
        array = self._array
        if spec and array.ndim:
            raise TypeError(f"format: {spec!r} formats a number, and this is a Tensor of rank {array.ndim}; index it")
        return format(array.item(), spec) if not array.ndim and array.dtype.char != "V" else str(array)

    # ------------------------------------------------------------------ copies

    def __copy__(self) -> Tensor:
        return wrap(served(self._array.copy, "K"), self._name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return wrap(copy.deepcopy(self._array, memo), self._name)

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        """Pickle the value; who unpickles it owns what is born there."""
        # From protocol 5 on the elements may be passed out of band, as an alias of the memory,
        # which is an export.
        array = self.numpy() if protocol >= 5 else self._array
        return _rebuilt, (array, self._name)


# Reads the slot, and raises AttributeError instead of `DisposedError` if it is empty.
_array_in: Final[Callable[[Tensor], Any]] = vars(Tensor)["_array"].__get__
_new: Final = object.__new__
_ndarray: Final[Any] = np.ndarray
_NUMPY: Final[tuple[Any, ...]] = (np.generic, np.ndarray)
# Whether any Tensor was ever made.
_was_made = False


def array_of(handle: Tensor) -> NDArray[Any] | None:
    """Return the array of a handle, or None if it is disposed; never raises."""
    try:
        array: NDArray[Any] = _array_in(handle)
    except AttributeError:
        return None
    return array


def describe(handle: Tensor) -> str:
    """Return shape, dtype and name of a tensor, live or disposed."""
    array = array_of(handle)
    last_state: LastState | None = handle._last_state if array is None else (array.shape, array.dtype, handle._name)
    return "Tensor" if last_state is None else tensor_text(*last_state)


def tensor_text(shape: tuple[int, ...], dtype: np.dtype[Any], name: str | None) -> str:
    """Return shape, dtype and name of a tensor as text, for messages and reports."""
    return f"Tensor shape={shape} dtype={dtype}{'' if name is None else f' name={name!r}'}"


def _release(handle: Tensor) -> None:
    array = array_of(handle)
    if array is not None:
        handle._last_state = (array.shape, array.dtype, handle._name)
        with suppress(AttributeError):  # another thread was first
            del handle._array


# A cache of the names of dtypes: formatting one is the slowest part of describing a tensor.
_dtypes: Final[dict[np.dtype[Any], str]] = {}
_MOST_DTYPES: Final = 256
"""The cache takes no more dtypes than this."""


def compact_copy(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array that pins more memory than it uses; else the array itself."""
    return served(np.array, array, subok=True) if storage_of(array)[1] > array.nbytes else array


@final
class TensorKind(Kind):
    """The kind of `Tensor`."""

    cls = Tensor
    name = "Tensor"

    def storages(self, resource: Any, /) -> tuple[tuple[int, int], ...]:
        """Return the storage behind it; nothing if another thread has just disposed it."""
        array = array_of(resource)
        return () if array is None else (storage_of(array),)

    def layout(self, resource: Any, /) -> tuple[tuple[int, ...], str, int] | None:
        """Return shape, name of the dtype and bytes; None if it has been disposed."""
        array = array_of(resource)
        if array is None:
            return None
        dtype = array.dtype
        known = _dtypes.get(dtype)
        if known is None:
            known = str(dtype)
            if len(_dtypes) < _MOST_DTYPES:
                _dtypes[dtype] = known
        return array.shape, known, array.nbytes

    def release(self, resource: Any, /) -> None:
        """Drop the array of the handle."""
        _release(resource)

    def describe(self, resource: Any, /) -> str:
        """Return shape, dtype and name; of a disposed Tensor, those before its disposal."""
        return describe(resource)

    def is_disposed(self, resource: Any, /) -> bool:
        """Return whether its array is gone."""
        return array_of(resource) is None

    def memory(self, resource: Any, /) -> tuple[Tensor]:
        """Return the Tensor itself: the arena may serve its elements."""
        return (resource,)

    def copy_compact(self, resource: Any, /) -> Tensor:
        """Give a view memory of its own."""
        array = array_of(resource)
        if array is not None:
            resource._array = compact_copy(array)
        return cast("Tensor", resource)


TENSOR: Final = TensorKind()
add_kind(TENSOR)


def live_arrays() -> list[tuple[Entry, NDArray[Any]]]:
    """Return the arrays of all live Tensors, the oldest first, each with its Tensor's entry."""
    if not _was_made:
        # Do not go through `LIVE`, which may have many tensors of other libraries.
        return []
    tensors = [(entry, entry()) for entry in list(LIVE.values()) if entry.kind is TENSOR]
    found = [(entry, None if tensor is None else array_of(tensor)) for entry, tensor in tensors]
    return [(entry, array) for entry, array in found if array is not None]


def wrap(array: Any, name: str | None = None) -> Tensor:
    """Return a new Tensor around an array, without a copy, born in the current scope.

    Parameters
    ----------
    array : numpy.ndarray or numpy.generic or object
        The array. A NumPy scalar becomes an array of rank 0. Any other object becomes an array of
        rank 0 and dtype object: NumPy returns objects when it reduces an array of them.
    name : str, optional
        Shown in messages and reports.
    """
    global _was_made
    _was_made = True
    if type(array) is not _ndarray:
        array = _rank_0(array)
    handle = _new(Tensor)
    handle._array = array
    if name is not None:
        handle._name = name
    born(handle, TENSOR)
    return handle


def unborn(array: NDArray[Any]) -> Tensor:
    """Return a new Tensor around an array without recording a birth.

    For a Tensor that becomes a member of a composite.
    """
    global _was_made
    _was_made = True
    handle = _new(Tensor)
    handle._array = array
    return handle


def _rank_0(value: Any) -> NDArray[Any]:
    if isinstance(value, _NUMPY):
        return served(np.asarray, value)
    box: NDArray[Any] = served(np.empty, (), dtype=object)
    box[()] = value
    return box
