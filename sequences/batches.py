"""`scoped_batches`: a scope for each batch, which is current in the loop body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast, final
from weakref import WeakSet

from ..scopes.base.options import EscapesOption
from ..scopes.compiled import again, with_undo
from ..scopes.context import UNOPENED
from ..scopes.identity import raise_with_context, united
from ..scopes.scope import DisposeScope

__all__ = [
    "scoped_batches",
]

T = TypeVar("T")


def scoped_batches(
    loader: Iterable[T], name: str | None = "batch", *, escapes: EscapesOption = "dispose"
) -> ScopedBatches[T]:
    """Return the batches of any iterable, each in a scope of its own, current in the loop body.

    ``for batch in scoped_batches(loader):`` disposes a batch, and everything that the loop body
    made, when the next batch is asked for, when the loop ends, breaks, returns or raises, and when
    the iterator is closed. Keep something with ``disposescope.move_to_outer(x)`` in the body: it
    goes to the scope around the loop.

    Parameters
    ----------
    loader : iterable
        A ``DataLoader``, a generator, a list, ...
    name : str, optional
        The name of each scope, for reports.
    escapes : {"dispose", "keep", "raise"}, default "dispose"
        What happens to what is still held when a batch's scope ends: see `dispose_scope`.

    Returns
    -------
    ScopedBatches
        An iterable of the same batches, and of the same length where the loader has one. It can be
        iterated as often as the loader. Also a context manager, which closes what is still open
        when it is left.

    Raises
    ------
    TypeError
        `loader` cannot be iterated, or `name` is no str.
    ValueError
        `escapes` is none of the three.

    Notes
    -----
    What the loader hands over belongs to the batch's scope, whoever owned it before: a list of
    batches that was made beforehand is disposed batch by batch. A batch can therefore be handed
    over only once. If a batch is handed over again, `DisposedError` is raised.

    The loader itself runs in the scope around the loop, not in that of a batch. What it carries
    from one batch to the next (batches that were fetched ahead, a shuffle buffer) lives on, and a
    generator may have scopes of its own.

    A batch is disposed before the next one is fetched, and the last one at the end: after the loop,
    the loop variable is a disposed batch. Where a loop breaks, its iterator dies and closes the
    scope with it; what a release raises then, or an interrupt, cannot propagate and goes to
    ``sys.unraisablehook``, as from any ``__del__``. Use the ``with`` form to have it raised. An
    iterator follows the context it is advanced in, and several may be interleaved, as by ``zip``:
    the one advanced last is current, inside the others.

    Examples
    --------
    >>> import disposescope as ds
    >>> kept = []
    >>> for batch in ds.scoped_batches(ds.arange(n) for n in (2, 3, 4)):
    ...     total = batch.sum()
    ...     kept.append(ds.move_to_outer(total))
    >>> [int(total) for total in kept], ds.is_disposed(batch)
    ([1, 3, 6], True)
    """
    return ScopedBatches(loader, name, escapes)


class _Closing(ABC):
    """A context manager that closes the scopes of batches when it is left."""

    __slots__ = ()

    def close(self) -> None:
        """Dispose the batches that are still open, and end every pass. Idempotent.

        Raises
        ------
        ExceptionGroup
            Releases failed. All others were done.
        """
        self._close(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._close(exc)

    @abstractmethod
    def _close(self, in_flight: BaseException | None) -> None:
        """Close. `in_flight` is the exception that propagates, or None."""


@final
class ScopedBatches(_Closing, Generic[T]):
    """The iterable of batches that `scoped_batches` returns. Also a context manager.

    As a context manager, it closes the scopes that are still open when it is left.
    """

    __slots__ = ("__weakref__", "_escapes", "_iterators", "_loader", "_name")

    _loader: Iterable[T]
    _escapes: EscapesOption
    _name: str | None
    # Weak, so that an iterator dies with its loop.
    _iterators: WeakSet[BatchIterator[T]]

    def __init__(self, loader: Iterable[T], name: str | None = "batch", escapes: EscapesOption = "dispose") -> None:
        given = cast(object, loader)
        if not isinstance(given, Iterable) and not hasattr(type(given), "__getitem__"):
            raise TypeError(f"scoped_batches: expected an iterable of batches, not {loader!r}")
        # Checks the name and the option here instead of at the first batch.
        DisposeScope(name, escapes=escapes)
        self._loader = loader
        self._name = name
        self._escapes = escapes
        self._iterators = WeakSet()

    def __iter__(self) -> BatchIterator[T]:
        iterator = BatchIterator(iter(self._loader), self._name, self._escapes)
        self._iterators.add(iterator)
        return iterator

    def __len__(self) -> int:
        return len(cast(Any, self._loader))

    def __bool__(self) -> bool:
        return True

    def _close(self, in_flight: BaseException | None) -> None:
        failures: list[BaseException] = []
        for iterator in list(self._iterators):
            again(failures, iterator.__exit__, None, in_flight, None)
        if failures:
            raise_with_context(failures[0] if len(failures) == 1 else united(failures, "closing scoped batches"))

    def __repr__(self) -> str:
        return f"scoped_batches({self._loader!r})"


@final
class BatchIterator(_Closing, Iterator[T]):
    """One pass over the batches.

    Closes the scope of its batch when it is advanced, exhausted, closed, or dies.
    """

    __slots__ = ("__weakref__", "_escapes", "_name", "_scope", "_source")

    _source: Iterator[T] | None
    _scope: DisposeScope | None
    _name: str | None
    _escapes: EscapesOption

    def __init__(self, source: Iterator[T], name: str | None, escapes: EscapesOption) -> None:
        self._source = source
        self._scope = None
        self._name = name
        self._escapes = escapes

    def __next__(self) -> T:
        self._leave(None)
        if self._source is None:
            raise StopIteration
        try:
            batch = next(self._source)
        except StopIteration:
            self._source = None
            raise
        self._scope = scope = DisposeScope(self._name, escapes=self._escapes)
        # Entered without a with statement, so that it stays open in the caller's context.
        scope.__enter__()
        try:
            scope._attach(batch)
        except BaseException as error:
            self._leave(error)
            raise
        return batch

    def _close(self, in_flight: BaseException | None) -> None:
        try:
            self._leave(in_flight)
        finally:
            # Only the reference is dropped: a loader that is an iterator itself can be used on.
            self._source = None

    def _leave(self, in_flight: BaseException | None) -> None:
        # The attribute is missing if an interrupt came while the iterator was made.
        scope = getattr(self, "_scope", None)
        if scope is not None and scope._state != UNOPENED:
            scope.__exit__(type(in_flight) if in_flight is not None else None, in_flight, None)
        self._scope = None

    def __del__(self) -> None:
        self._close(None)


# These methods close the scope if they are interrupted before their first line. The iterator would
# not do so by dying, because the traceback of the exception keeps it alive. What is assigned takes
# the same arguments.
_wrapped: Final = with_undo
BatchIterator.__next__ = _wrapped((BatchIterator.__next__, BatchIterator._leave))  # type: ignore[method-assign]  # same
BatchIterator.__del__ = _wrapped((BatchIterator.__del__, BatchIterator._leave))  # type: ignore[method-assign]  # same
_Closing.__exit__ = _wrapped((_Closing.__exit__, _Closing._close))  # type: ignore[method-assign]  # same signature
