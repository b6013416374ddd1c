"""The collate hook: any collate function, in a scope of its own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, final

from ..scopes._scope import DisposeScope
from ._torch_inputs import check_batch

__all__ = ["ScopedCollate"]

P = ParamSpec("P")
R = TypeVar("R")


@final
class ScopedCollate(Generic[P, R]):
    """A collate function that leaves nothing behind but the batch.

    Each call opens a scope around the wrapped function. What the function makes on the way (padding, sorted copies,
    tensors of single samples) is disposed, and the batch it returns is moved out as a tree: to the scope that is
    current where the collate function is called, or unowned where none is, as in a worker process. Where the function
    raises, nothing is left.

    Parameters
    ----------
    function : callable
        The collate function; called with whatever this is called with. One that is wrapped already is not wrapped
        again.

    Raises
    ------
    TypeError
        `function` cannot be called.

    Notes
    -----
    Can be pickled where `function` can, so that it works in the worker processes of a ``DataLoader``, and used as a
    decorator. A batch that contains an object of unknown type in which one of its tensors hides is refused with
    `UnknownKindError`: the tensor would be lost. A packed sequence of PyTorch's whose fields were stacked is refused
    with ``ValueError``: ``default_collate`` makes such of samples that are packed sequences, and they are none.

    Examples
    --------
    >>> import disposescope as ds
    >>> made = []
    >>> @ds.ScopedCollate
    ... def collate(samples):
    ...     made.extend(ds.asarray(sample) for sample in samples)
    ...     return ds.pad_sequence(made, batch_first=True)
    >>> collate([[1, 2, 3], [4]]).tolist(), [ds.is_disposed(sample) for sample in made]
    ([[1, 2, 3], [4, 0, 0]], [True, True])
    """

    function: Callable[P, R]

    def __init__(self, function: Callable[P, R]) -> None:
        if isinstance(function, ScopedCollate):
            function = function.function
        if not callable(function):
            raise TypeError(f"ScopedCollate: expected a collate function, not {function!r}")
        functools.update_wrapper(self, function, updated=())
        self.function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with DisposeScope("collate") as scope:
            batch = self.function(*args, **kwargs)
            check_batch(batch, "ScopedCollate")
            return scope.move_to_outer(batch)

    def __repr__(self) -> str:
        return f"ScopedCollate({getattr(self.function, '__qualname__', None) or repr(self.function)})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A decorated function is found under its own name only, and what is found there is this object.
        found: Any = sys.modules.get(getattr(self.function, "__module__", None) or "")
        name = getattr(self.function, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return str(name)
        return ScopedCollate, (self.function,)
