"""NumPy's protocols: ufuncs, functions, conversion to arrays, and DLPack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._arguments import PLAIN, bare, dressed, overrides
from ._exports import export
from ._handle import Handle, describe, wrap
from ._in_place import InPlace

__all__ = ["Protocols"]

_WITH_LIKE: Final = frozenset(
    [
        "arange",
        "array",
        "asanyarray",
        "asarray",
        "ascontiguousarray",
        "asfortranarray",
        "empty",
        "eye",
        "frombuffer",
        "fromfile",
        "fromfunction",
        "fromiter",
        "fromstring",
        "full",
        "genfromtxt",
        "identity",
        "loadtxt",
        "ones",
        "require",
        "tri",
        "zeros",
    ]
)
"""Functions of NumPy that come here for their argument ``like=``, which is not among their arguments any more."""


class Protocols(InPlace):
    """How NumPy and other libraries reach a Tensor."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        for value in inputs:
            if isinstance(value, Handle):
                value = value._array
            elif type(value) not in PLAIN and overrides(type(value)):
                return NotImplemented
            arrays.append(value)
        out: tuple[Any, ...] = ()
        if kwargs:
            out = kwargs.get("out", ())
            if any(overrides(type(target)) for target in out):
                return NotImplemented
            kwargs = {option: bare(value) for option, value in kwargs.items()}
        if method == "at":
            arrays[1:] = bare(arrays[1:])
        result: Any = getattr(ufunc, method)(*arrays, **kwargs)
        if out:
            if type(result) is tuple:
                return tuple([wrap(got) if target is None else target for got, target in zip(result, out, strict=True)])
            return out[0]
        if type(result) is tuple:
            return tuple([wrap(got) for got in result])
        if result is None:
            return None
        return result if isinstance(result, np.ndarray) and type(result) is not np.ndarray else wrap(result)

    def __array_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        for cls in types:
            if not issubclass(cls, (Handle, np.ndarray)):
                return NotImplemented
        _ = self._array
        given: dict[int, Any] = {}
        arguments, options = bare(args, given), bare(dict(kwargs), given)
        if not given and func.__name__ not in _WITH_LIKE:
            # A Tensor in a container that is not understood: calling again would come back here, again and again.
            return NotImplemented
        out = kwargs.get("out")
        if out is not None:
            for target in out if isinstance(out, tuple) else (out,):  # pyright: ignore[reportUnknownVariableType]
                if not isinstance(target, Handle):
                    given[id(target)] = target  # pyright: ignore[reportUnknownArgumentType]
        return dressed(func(*arguments, **options), given)

    def numpy(self) -> NDArray[Any]:
        """A plain array that shares this tensor's memory, without a copy.

        It stays valid after the tensor is disposed: the memory is freed with the last of its aliases. Until then it counts
        as exported, and as escaped once the tensor is disposed.

        Examples
        --------
        >>> import disposescope as ds
        >>> with ds.dispose_scope():
        ...     alias = ds.arange(3).numpy()
        >>> alias
        array([0, 1, 2])
        """
        return export(self._array, self, describe(self))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self._array
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"a Tensor of dtype {array.dtype} cannot be an array of {np.dtype(dtype)} without a copy"
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

    def __buffer__(self, flags: int, /) -> memoryview:
        return memoryview(self.numpy())

    def __bytes__(self) -> bytes:
        return self._array.tobytes()
