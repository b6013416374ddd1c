"""The walk through arrays of objects: what they hold is found, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..scopes._trees import WALKERS

__all__ = ["children"]


def children(node: object) -> Iterator[tuple[str, object]] | None:
    """The objects in an array, labelled by their index; None for what is no array.

    Examples
    --------
    >>> import numpy as np
    >>> list(children(np.array([["a", None]], dtype=object)))
    [('[0, 0]', 'a'), ('[0, 1]', None)]
    """
    if not issubclass(type(node), np.ndarray):
        return None
    array: Any = node
    if type(array) is np.ndarray and not array.dtype.hasobject:
        return iter(())
    # As a plain array: a subclass may have code of its own in every access.
    return _objects(np.ndarray.view(array, np.ndarray), "")


def _objects(array: NDArray[Any], field: str) -> Iterator[tuple[str, object]]:
    dtype = array.dtype
    if dtype.fields is not None:
        for name in dtype.names or ():
            yield from _objects(array[name], f"{field}[{name!r}]")
    elif dtype.char == "O":
        for index in np.ndindex(array.shape):
            yield f"{field}[{', '.join(map(str, index)) or '()'}]", array[index]


WALKERS.append(children)
