"""Memory that left a Tensor as a plain array: aliases whose life is followed exactly, and what is still out there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ._handle import Handle, spelled
from ._storage import Tie, storage_of

__all__ = ["ExportedStorage", "export", "exported_identities", "exported_storages"]


@final
@dataclass(frozen=True, slots=True)
class ExportedStorage:
    """Memory of which plain arrays, DLPack consumers or buffers still hold an alias.

    Attributes
    ----------
    nbytes : int
        The bytes of the whole storage.
    aliases : int
        How many exports of it are alive; what was derived from one export counts with it.
    escaped : bool
        Whether a Tensor that it was exported from has been disposed, or is gone.
    resource : str
        What the Tensor was when it was exported last.
    """

    nbytes: int
    aliases: int
    escaped: bool
    resource: str


@final
class _Export(ref[Any]):
    """A weak reference to what every user of one export holds on to."""

    __slots__ = ("exporter", "key", "nbytes", "shown", "storage")

    key: int
    storage: int
    nbytes: int
    exporter: Callable[[], Handle | None]
    shown: tuple[tuple[int, ...], np.dtype[Any], str | None]


_EXPORTS: Final[dict[int, _Export]] = {}


def _forget(export: _Export, exports: dict[int, _Export] = _EXPORTS) -> None:
    exports.pop(export.key, None)


def export(handle: Handle) -> NDArray[Any]:
    """An array that shares the memory of a Tensor, known as exported until the last user of that memory is gone.

    Parameters
    ----------
    handle : Handle
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
    """An alias, and the object that lives as long as any use of it; None where there is no memory to follow."""
    if array.size == 0:
        return array.view(), None
    tie: Tie | None = None
    try:
        tie = Tie(array)
        alias: NDArray[Any] = np.asarray(tie)
        if alias.dtype != array.dtype:
            alias = alias.view(array.dtype)
    except (TypeError, ValueError):
        # The array interface cannot say what this dtype is (StringDType; objects at odd offsets). The alias itself is
        # followed then: a view of it that outlives it is not.
        alias = array.view()
        return alias, alias
    return alias, tie


def exported_identities() -> set[int]:
    """The identities of those storages."""
    return {entry.storage for entry in list(_EXPORTS.values()) if entry() is not None}


def exported_storages() -> tuple[ExportedStorage, ...]:
    """The storages of Tensors of which an exported alias is alive, each once.

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
        found[entry.storage] = ExportedStorage(entry.nbytes, aliases, escaped, spelled(*entry.shown))
    return tuple(found.values())
