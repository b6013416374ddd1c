"""One call in a scope of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ._scope import DisposeScope

__all__ = ["tidy"]

P = ParamSpec("P")
R = TypeVar("R")


def tidy(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a scope of its own, and move what it returns to the caller's scope.

    Everything else born in the call is disposed. A coroutine function gives a coroutine to await, a generator
    function a generator, as with ``@dispose_scope()``.

    Returns
    -------
    R
        What `function` returned.

    Raises
    ------
    TypeError
        `function` cannot be called.

    Examples
    --------
    >>> import disposescope as ds
    >>> float(ds.tidy(lambda n: (ds.arange(n) * 2.0).sum(), 4))
    12.0
    """
    result: R = DisposeScope()(function)(*args, **kwargs)
    return result
