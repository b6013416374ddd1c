"""Collate functions: `ScopedCollate` wraps any of them in a scope, `pack_collate` makes one."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, final

import numpy as np

from ..scopes.base.options import EscapesOption, check_escapes_option
from ..scopes.kinds import kind_of
from ..scopes.scope import DisposeScope
from ..scopes.tree_walk import resources_in
from ..tensors.numpy.alignment import served
from .adapter import Array, Block, as_numpy, has_torch, is_tensor_like, is_torch, is_torch_packed
from .array_adapter import ArrayAdapter
from .pack import adapter_of, check_flag, check_lengths, pack_sequence
from .packed import PackedSequence

__all__ = [
    "ScopedCollate",
    "pack_collate",
]

# ScopedCollate: any collate function, in a scope of its own.


P = ParamSpec("P")
R = TypeVar("R")


@final
class ScopedCollate(Generic[P, R]):
    """A collate function that leaves nothing behind but the batch.

    Each call opens a scope around the wrapped function. What the function makes on the way
    (padding, sorted copies, tensors of single samples) is disposed, and the batch it returns is
    moved out as a tree: to the scope that is current where the collate function is called, or
    unowned where none is, as in a worker process. If the function raises an error, nothing is left.

    Parameters
    ----------
    function : callable
        The collate function; called with whatever this is called with. A function that is wrapped
        already is not wrapped again.
    escapes : {"dispose", "keep", "raise"}, default "dispose"
        What happens to what is still held when a call ends, such as a cache of the function's: see
        `dispose_scope`.

    Raises
    ------
    TypeError
        `function` cannot be called.
    ValueError
        `escapes` is none of the three.

    Notes
    -----
    Can be pickled if `function` can, so that it works in the worker processes of a ``DataLoader``.
    Can be used as a decorator. A batch with an object of unknown type that hides a tensor is
    refused with `UnknownKindError`: the tensor would be lost. A packed sequence of PyTorch whose
    fields were stacked is refused with ``ValueError``: ``default_collate`` makes such objects of
    samples that are packed sequences, and they are no valid packed sequences.

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
    escapes: EscapesOption

    def __init__(self, function: Callable[P, R], *, escapes: EscapesOption = "dispose") -> None:
        check_escapes_option(escapes, "ScopedCollate")
        if isinstance(function, ScopedCollate):
            function = function.function
        if not callable(function):
            raise TypeError(f"ScopedCollate: expected a collate function, not {function!r}")
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.escapes = escapes

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Collate in a scope of its own, and move the batch out of it."""
        with DisposeScope("collate", escapes=self.escapes) as scope:
            batch = self.function(*args, **kwargs)
            for resource in resources_in(batch) if has_torch() else ():
                if is_torch_packed(resource):
                    from .torch_adapter import check_whole

                    check_whole(resource, "ScopedCollate")
            return scope.move_to_outer(batch)

    def __repr__(self) -> str:
        return f"ScopedCollate({getattr(self.function, '__qualname__', None) or repr(self.function)})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # The name of a decorated function refers to this object, so it is pickled by that name.
        found: Any = sys.modules.get(getattr(self.function, "__module__", None) or "")
        name = getattr(self.function, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return str(name)
        return functools.partial(ScopedCollate, escapes=self.escapes), (self.function,)


# pack_collate: fields that vary in length are packed, the others stacked.


FieldPath = tuple[str, ...]
"""The names that lead to a field, from the outermost sample to the innermost."""
Names = Collection[str | int]

_LISTED: Final = (str, bytes, type(None))
"""The types of values that a batch has as a list."""
_NUMBERS: Final = (bool, int, float, complex, np.generic)
"""The types of values that a batch has as a tensor of one axis."""


def pack_collate(
    pack: Names | Literal["varying", "all"] = "varying", *, stack: Names = (), enforce_sorted: bool = False
) -> PackCollate:
    """Return a collate function that packs what varies in length and stacks the rest.

    The batch has the structure of one sample.

    Samples are arrays, Tensors, numbers, or any nesting of tuples, lists, namedtuples, dicts,
    dataclasses and attrs classes of them. In the batch,

    * a field of arrays that vary in the length of their first axis becomes a `PackedSequence`,
    * any other field of arrays becomes a Tensor, shape (batch, *),
    * a field of numbers becomes a Tensor, shape (batch,),
    * fields of PyTorch's tensors become PyTorch's packed sequences and tensors, and so do the
      numbers in such samples,
    * a field of ``str``, ``bytes`` or ``None`` becomes a list.

    Parameters
    ----------
    pack : {"varying", "all"} or collection of names, default "varying"
        Which fields of arrays are packed. With names: these, whatever their lengths are, and no
        others. ``"all"``: all that have a length (at least one axis), except those named in
        `stack`. ``"varying"``: those whose length has been seen to vary by this collate function,
        in this batch or in an earlier one.
    stack : collection of names, optional
        Fields that are never packed.
    enforce_sorted : bool, default False
        Refuse batches whose sequences are not sorted by length, longest first. With False they are
        sorted, and each packed field has its own indices.

    Returns
    -------
    PackCollate
        A callable that takes the list of samples. It can be pickled, and opens a scope for each
        call, as `ScopedCollate` does: the batch is what is left, and it belongs to the scope that
        is current where it is called.

    Raises
    ------
    ValueError
        A name is in both `pack` and `stack`, or is empty.
    TypeError
        An option is of the wrong type.

    Notes
    -----
    A name is the key, the name or the index that leads to a field (``"tokens"``, ``0``), with dots
    into nested samples (``"inputs.tokens"``, ``"0.1"``).

    A batch whose sequences happen to be of one length, above all a batch of one sample, does not
    show that a field varies. So with ``"varying"`` a field stays packed once it has been seen to
    vary, but a batch of one length *before* that is stacked, and each worker process sees batches
    of its own. Name the fields in `pack` where the type of the batch must not depend on the data.

    Examples
    --------
    >>> import disposescope as ds
    >>> import numpy as np
    >>> samples = [
    ...     {"tokens": np.arange(length), "label": length % 2, "id": f"n{length}"}
    ...     for length in (2, 3)
    ... ]
    >>> batch = ds.pack_collate(pack=["tokens"])(samples)
    >>> batch["tokens"].batch_sizes.tolist(), batch["label"].tolist(), batch["id"]
    ([2, 2, 1], [0, 1], ['n2', 'n3'])
    """
    return PackCollate(pack, stack, enforce_sorted)


@final
class PackCollate:
    """The collate function that `pack_collate` returns. Called with samples, it returns a batch.

    The call raises these exceptions.

    Raises
    ------
    ValueError
        There are no samples, their structures or shapes differ, a sequence is empty, or a name
        leads to no field of arrays. The message names the field and the sample.
    TypeError
        A field is of a type that is not understood, or of different types in two samples.
    DisposedError
        A Tensor in a sample has been disposed.
    """

    __slots__ = ("_enforce_sorted", "_pack", "_stack", "_varied")

    _pack: frozenset[FieldPath] | Literal["varying", "all"]
    _stack: frozenset[FieldPath]
    _enforce_sorted: bool
    # The fields whose length was seen to vary. The set only grows, and adding to it is atomic, so
    # that several threads may use one collate function.
    _varied: set[FieldPath]

    def __init__(self, pack: Names | Literal["varying", "all"], stack: Names, enforce_sorted: bool) -> None:
        if isinstance(pack, str):
            if pack not in ("varying", "all"):
                raise ValueError(f"pack_collate: pack must be 'varying', 'all' or a collection of names, not {pack!r}")
            self._pack = "varying" if pack == "varying" else "all"
        else:
            self._pack = _paths_of(pack, "pack")
        self._stack = _paths_of(stack, "stack")
        if isinstance(self._pack, frozenset) and self._pack & self._stack:
            both = ", ".join(sorted(map(_called, self._pack & self._stack)))
            raise ValueError(f"pack_collate: {both} is named in both pack and stack")
        check_flag(enforce_sorted, "pack_collate", "enforce_sorted")
        self._enforce_sorted = enforce_sorted
        self._varied = set()

    def __call__(self, samples: Iterable[Any]) -> Any:
        """Return the batch of some samples: see `pack_collate`."""
        with DisposeScope("collate") as scope:
            given = list(samples)
            if not given:
                raise ValueError("pack_collate: there are no samples to make a batch of")
            met: set[FieldPath] = set()
            tensor = next(filter(is_torch, resources_in(given[0])), None) if has_torch() else None
            batch = self._field((), given, met, adapter_of(tensor))
            named = self._stack if isinstance(self._pack, str) else self._stack | self._pack
            for path in sorted(named - met):
                known = ", ".join(sorted(map(_called, met))) or "none"
                raise ValueError(
                    f"pack_collate: {_called(path)} is named and is no field of arrays; there are: {known}"
                )
            return scope.move_to_outer(batch)

    def _field(self, path: FieldPath, values: list[Any], met: set[FieldPath], numbers: ArrayAdapter) -> Any:
        """Return the batch of one field.

        Parameters
        ----------
        path : tuple of str
            The names that lead to the field.
        values : list
            The field of each sample.
        met : set of tuple of str
            Gets the paths of the fields of arrays.
        numbers : ArrayAdapter
            Makes the tensors of fields of numbers.
        """
        first = values[0]
        if is_torch_packed(first) or isinstance(first, PackedSequence):
            raise TypeError(
                f"{_where(path, 0)} is a PackedSequence, which is a batch already; "
                "let the dataset give the sequences themselves, or unpack_sequence() them first"
            )
        if isinstance(first, _LISTED):
            _check_each(path, values, lambda value: isinstance(value, _LISTED))
            return values
        if isinstance(first, _NUMBERS):
            _check_each(path, values, lambda value: isinstance(value, _NUMBERS))
            return numbers.tensor(served(_array_of_numbers, path, values))
        belongs = next((test for test in (is_torch, is_tensor_like) if test(first)), None)
        if belongs is not None:
            _check_each(path, values, belongs)
            met.add(path)
            adapter = adapter_of(first)
            return self._blocks(
                path, adapter, [adapter.block(value, _where(path, at)) for at, value in enumerate(values)]
            )
        children = _children(first)
        if children is None:
            raise _not_understood(path, first)
        _check_each(path, values, lambda value: type(value) is type(first))
        given = [children, *(_children(value) or {} for value in values[1:])]
        for at, fields in enumerate(given):
            if fields.keys() != children.keys():
                raise ValueError(
                    f"{_where(path, at)} has the fields {list(fields)}, where sample 0 has {list(children)}"
                    + (
                        "; a list is taken for a structure: make an array of one that is a sequence"
                        if type(first) is list
                        else ""
                    )
                )
        batches = {
            name: self._field((*path, str(name)), [fields[name] for fields in given], met, numbers) for name in children
        }
        return _rebuilt(first, batches)

    def _blocks(self, path: FieldPath, adapter: ArrayAdapter, blocks: list[Block]) -> Any:
        """Return the batch of a field of arrays or of tensors of PyTorch: packed or stacked."""
        blocks = adapter.of_one_dtype(blocks, [_where(path, at) for at in range(len(blocks))])
        shapes = [tuple(block.shape) for block in blocks]
        first = shapes[0]
        for at, shape in enumerate(shapes):
            if len(shape) != len(first) or shape[1:] != first[1:]:
                raise ValueError(f"{_where(path, at)} has shape {shape}, where sample 0 has {first}")
        odd = next((at for at, shape in enumerate(shapes) if shape != first), None)
        if odd is not None and self._pack == "varying":
            self._varied.add(path)
        if not self._is_packed(path, len(first)):
            if odd is not None:
                raise ValueError(
                    f"{_where(path, odd)} has shape {shapes[odd]}, where sample 0 has {first}, "
                    "and the field is stacked; name it in pack= to have it packed"
                )
            return adapter.stacked(blocks)
        for at, shape in enumerate(shapes):
            if not shape or 0 in shape:
                raise ValueError(f"{_where(path, at)} has shape {shape}, and an empty sequence cannot be packed")
        if self._enforce_sorted:
            check_lengths(np.array([shape[0] for shape in shapes]), f"pack_collate: {_called(path)}")
        return pack_sequence(blocks, self._enforce_sorted)

    def _is_packed(self, path: FieldPath, ndim: int) -> bool:
        if path in self._stack:
            return False
        if self._pack == "varying":
            return path in self._varied
        return ndim > 0 if self._pack == "all" else path in self._pack

    def __getstate__(self) -> tuple[Any, ...]:
        return self._pack, self._stack, self._enforce_sorted, set(self._varied)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._pack, self._stack, self._enforce_sorted, self._varied = state

    def __repr__(self) -> str:
        packed = self._pack if isinstance(self._pack, str) else sorted(".".join(path) for path in self._pack)
        stacked = sorted(".".join(path) for path in self._stack)
        return f"pack_collate(pack={packed!r}, stack={stacked!r}, enforce_sorted={self._enforce_sorted!r})"


def _paths_of(names: object, option: str) -> frozenset[FieldPath]:
    if not isinstance(names, Collection) or isinstance(names, (str, bytes)):
        raise TypeError(f"pack_collate: {option} must be a collection of names, not {names!r}")
    given = cast("Collection[object]", names)
    for name in given:
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise TypeError(f"pack_collate: a name in {option} must be a str or an int, not {name!r}")
    return frozenset(tuple(str(name).split(".")) if name != "" else () for name in given)


def _called(path: FieldPath) -> str:
    return f"field {'.'.join(path)!r}" if path else "the sample itself"


def _where(path: FieldPath, at: int) -> str:
    return f"pack_collate: {_called(path)} of sample {at}" if path else f"pack_collate: sample {at}"


def _check_each(path: FieldPath, values: list[Any], belongs: Callable[[Any], bool]) -> None:
    for at, value in enumerate(values):
        if not belongs(value):
            raise TypeError(
                f"{_where(path, at)} is a {type(value).__qualname__}, "
                f"where sample 0 has a {type(values[0]).__qualname__}"
            )


def _array_of_numbers(path: FieldPath, values: list[Any]) -> Array:
    array: Array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"{_where(path, 0)} and the other samples make no array of numbers, but one of dtype {array.dtype}"
        )
    return array


def _children(value: Any) -> dict[Any, Any] | None:
    """Return the fields of a container by key, name or index; None for other objects."""
    if isinstance(value, Mapping):
        return {**value}
    if isinstance(value, (tuple, list)):
        items = cast("Sequence[Any]", value)
        names: Iterable[Any] = getattr(items, "_fields", range(len(items)))
        return dict(zip(names, items, strict=True))
    if isinstance(value, type) or kind_of(value) is not None:
        return None
    attributes = getattr(cast(Any, type(value)), "__attrs_attrs__", None)
    fields: Any = dataclasses.fields(value) if dataclasses.is_dataclass(value) else attributes
    return None if fields is None else {field.name: getattr(value, field.name) for field in fields}


def _rebuilt(first: Any, batches: dict[Any, Any]) -> Any:
    """Return a container like the first sample, with the batches as its fields."""
    cls = cast(Any, type(first))
    if cls is dict or (isinstance(first, Mapping) and not isinstance(first, MutableMapping)):
        return batches
    if isinstance(first, (tuple, list)):
        return cls._make(batches.values()) if hasattr(cls, "_make") else cls(batches.values())
    # A copy, because __init__ may check conditions that hold for a sample and not for a batch.
    # object.__setattr__, because the class may be frozen.
    clone: Any = copy.copy(cast(Any, first))
    for name, batch in batches.items():
        if isinstance(first, MutableMapping):
            clone[name] = batch
        else:
            object.__setattr__(clone, name, batch)
    return clone


def _not_understood(path: FieldPath, value: Any) -> TypeError:
    try:
        as_numpy(value, _where(path, 0))
    except TypeError as error:
        return TypeError(
            f"{error}; samples are arrays, numbers, str, bytes, None, or tuples, lists, dicts, dataclasses "
            "and attrs classes of them"
        )
    raise AssertionError("an array is understood")
