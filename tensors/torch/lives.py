"""PyTorch's CPU memory in a recording of lives.

The blocks are PyTorch's, and stay where they are: they have no place in a slab. A dispatch mode
sees the results of every operation on the thread, those of ``backward()`` and of optimizers
included; memory is born where a storage comes up in a result that was in no argument, and dies with
the storage, to which PyTorch keeps one Python object. What an operation allocates and frees inside
itself is not seen.

The mode costs some microseconds an operation, so it is on only while something records.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, final

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ...scopes.base.process import PATCHES
from ...scopes.framework import LifeLog
from ..patches import TORCH_DISPATCH_MODES

__all__ = ["note_lives"]

# PyTorch has no types for it.
_DispatchMode: Final[Any] = TorchDispatchMode


def note_lives(lives: LifeLog) -> Callable[[], None]:
    """Note in a recording what operations of this thread make from now on.

    Return what ends that.
    """
    mode = _NotingMode(lives)
    push, pop = (getattr(_python_dispatch, name, None) for name in ("_push_mode", "_pop_mode"))
    if push is None or pop is None:
        PATCHES.fail(TORCH_DISPATCH_MODES, f"not so: {TORCH_DISPATCH_MODES.guard}")
        mode.__enter__()
        return partial(mode.__exit__, None, None, None)
    # To enter the mode sets flags of the whole process besides. PyTorch before 2.8 compiles nothing
    # while they are set, and they stay set where two threads end their recordings in the order in
    # which they began them.
    push(mode)
    return partial(_take_off, pop, mode)


def _take_off(pop: Callable[[], object], _mode: object) -> None:
    # PyTorch 2.5 crashes where the stack has the only reference to what is taken off.
    pop()


@final
class _NotingMode(_DispatchMode):  # type: ignore[misc]  # the base is Any
    """Notes the memory that is new in what operations return."""

    def __init__(self, lives: LifeLog) -> None:
        _DispatchMode.__init__(self)
        self._lives: Final = lives
        # By the storage's C++ object: a reference to its Python object.
        self._known: Final[dict[int, weakref.ref[Any]]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors_in((*args, *kwargs.values())):
            self._know(tensor, None)
        result = func(*args, **kwargs)
        for tensor in _tensors_in((result,)):
            self._know(tensor, self._lives)
        return result

    def _know(self, tensor: Any, lives: LifeLog | None) -> None:
        if tensor.layout is not torch.strided:
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # A wrapper around other tensors, or a disposed one.
            return
        if storage.device.type != "cpu":
            # On another device, or without memory, which is what fake tensors have.
            return
        key = storage._cdata
        if key in self._known:
            return
        nbytes = storage.nbytes()
        note_death: Callable[[], object] | None = None
        if lives is not None and nbytes:
            number = lives.note(nbytes)
            note_death = None if number is None else partial(lives.note_death, number)
        known = self._known

        def died(reference: object) -> None:
            if known.get(key) is reference:
                del known[key]
            if note_death is not None:
                note_death()

        known[key] = weakref.ref(storage, died)


def _tensors_in(things: Any) -> Iterator[Any]:
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, (tuple, list)):
            yield from _tensors_in(thing)
