"""NumPy's protocols: ufuncs, functions, conversion to arrays, and DLPack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._arguments import PLAIN, bare, dressed, overrides
from ._exports import export
from ._handle import Handle, wrap
from ._in_place import InPlace

__all__ = ["Protocols"]

_WITH_LIKE: Final = frozenset(
    {"arange", "array", "asanyarray", "asarray", "ascontiguousarray", "asfortranarray", "empty", "eye", "frombuffer"}
    | {"fromfile", "fromfunction", "fromiter", "fromstring", "full", "genfromtxt", "identity", "loadtxt", "ones"}
    | {"require", "tri", "zeros"}
)
"""Functions of NumPy that come here for their argument ``like=``, which is not among their arguments any more."""

_ARRAY: Final[Any] = np.ndarray


class Protocols(InPlace):
    """How NumPy and other libraries reach a Tensor.

    The buffer protocol is spoken by `data` alone. NumPy would ask a ``__buffer__`` of the Tensor's own (Python 3.12)
    before ``__array__``, and Python lets what it gives hold the Tensor: an alias would keep alive what it must not.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        for value in inputs:
            if isinstance(value, Handle):
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
            if not issubclass(cls, (Handle, np.ndarray)):
                return NotImplemented
        # Also where it is only named by ``like=``.
        _ = self._array
        given: dict[int, Any] = {}
        arguments, options = bare(args, given), bare(dict(kwargs), given)
        if not given and func.__name__ not in _WITH_LIKE:
            # A Tensor in a container that is not understood: calling again would come back here, again and again.
            return NotImplemented
        out = kwargs.get("out")
        if out is not None:
            given.update((id(target), target) for target in _targets(out) if not isinstance(target, Handle))
        return dressed(func(*arguments, **options), given)

    def numpy(self) -> NDArray[Any]:
        """A plain array that shares this tensor's memory, without a copy.

        It stays valid after the tensor is disposed: the memory is freed with the last of its aliases. Until then it
        counts as exported, and as escaped once the tensor is disposed.

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
        options: dict[str, Any] = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Literal[1], Literal[0]]:
        _ = self._array
        return 1, 0

    def __bytes__(self) -> bytes:
        return self._array.tobytes()


def _targets(out: Any) -> tuple[Any, ...]:
    return out if type(out) is tuple else (out,)  # pyright: ignore[reportUnknownVariableType] (from Any)


def _result(array: Any, target: Any) -> Any:
    """What a ufunc gives back: the target that the caller named, a Tensor, or an instance of a subclass of ndarray."""
    if target is not None:
        return target
    return array if isinstance(array, _ARRAY) and type(array) is not _ARRAY else wrap(array)
