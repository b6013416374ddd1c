"""PyTorch's CPU memory in a recording of lives.

The blocks are PyTorch's, and stay where they are: they have no place in a slab. A dispatch mode
sees the results of every operation on the thread, those of ``backward()`` and of optimizers
included; memory is born where a storage comes up in a result that was in no argument, and dies with
the storage, to which PyTorch keeps one Python object. What an operation allocates and frees inside
itself is not seen.

The mode costs some microseconds an operation, so it is on only while something records. Several
may be on a thread at once, such as those of tasks: each birth is noted by the recording that has
the current scope.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, final

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
    functions: list[Any] = [getattr(_python_dispatch, name, None) for name in _FUNCTIONS]
    if None in functions:
        PATCHES.fail(TORCH_DISPATCH_MODES, f"not so: {TORCH_DISPATCH_MODES.guard}")
        mode.__enter__()
        return partial(mode.__exit__, None, None, None)
    stack = _Stack(*functions)
    stack.take_off_those(lambda left: left.has_ended)
    if not hasattr(_here, "thread"):
        _here.thread = _OfThread(stack)
    # To enter the mode sets flags of the whole process besides. PyTorch before 2.8 compiles nothing
    # while they are set, and they stay set where two threads end their recordings in the order in
    # which they began them.
    stack.push(mode)
    return partial(_end, stack, mode)


_FUNCTIONS: Final = ("_push_mode", "_pop_mode", "_get_current_dispatch_mode_stack")


_here: Final = threading.local()


@final
class _OfThread:
    """Goes with a thread: PyTorch may abort the process where one ends with modes on its stack."""

    def __init__(self, stack: _Stack) -> None:
        self._stack = stack

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._stack.take_off_those(lambda left: True)


def _end(stack: _Stack, mode: _NotingMode) -> None:
    # Where a pass ends on another thread than it began on, the mode stays on that one's stack until
    # the next pass there.
    mode.end()
    stack.take_off(mode)


class _Stack(NamedTuple):
    """The dispatch modes of the thread that runs."""

    push: Callable[[Any], object]
    pop: Callable[[], Any]
    modes: Callable[[], list[Any]]

    def take_off_those(self, unwanted: Callable[[_NotingMode], bool]) -> None:
        """Take off those modes of recordings that are unwanted."""
        for left in self.modes():
            if isinstance(left, _NotingMode) and unwanted(left):
                self.take_off(left)

    def take_off(self, mode: _NotingMode) -> None:
        """Take a mode off, if it is there; what others have put over it goes back."""
        if not any(each is mode for each in self.modes()):
            return
        # PyTorch 2.5 crashes where the stack has the only reference to what is taken off.
        over: list[Any] = []
        while (top := self.pop()) is not mode:
            over.append(top)
        while over:
            self.push(over[-1])
            over.pop()


@final
class _NotingMode(_DispatchMode):  # type: ignore[misc]  # the base is Any
    """Notes the memory that is new in what operations return."""

    def __init__(self, lives: LifeLog) -> None:
        _DispatchMode.__init__(self)
        self._lives: LifeLog | None = lives
        # By the storage's C++ object: a reference to its Python object; the number of its birth.
        self._known: Final[dict[int, weakref.ref[Any]]] = {}
        self._births: Final[dict[int, int]] = {}

    @property
    def has_ended(self) -> bool:
        return self._lives is None

    def end(self) -> None:
        """Note nothing any more, wherever it is."""
        self._lives = None
        self._known.clear()
        self._births.clear()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._lives is None:
            return func(*args, **kwargs)
        lives = self._lives
        given = [*_tensors_in((*args, *kwargs.values()))]
        for tensor in given:
            self._know(tensor, None)
        result = func(*args, **kwargs)
        made = [*_tensors_in((result,))]
        for tensor in made:
            self._know(tensor, lives)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            for tensor in _saved_of(func._schema.name, given, made):
                number = None if tensor.layout is not torch.strided else self._births.get(_key_of(tensor) or 0)
                if number is not None:
                    lives.note_saved(number)
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
        known, births = self._known, self._births
        if lives is not None and nbytes:
            number = lives.note(nbytes)
            if number is not None:
                note_death = partial(lives.note_death, number)
                births[key] = number

        def died(reference: object) -> None:
            if known.get(key) is reference:
                del known[key]
                births.pop(key, None)
            if note_death is not None:
                note_death()

        known[key] = weakref.ref(storage, died)


# What the graph saves of common operations, as in PyTorch's ``tools/autograd/derivatives.yaml``. Of
# all others it may be any of it.
_SAVING_NOTHING: Final = frozenset(
    {
        *("add", "sub", "neg", "sum", "mean", "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand"),
        *("cat", "stack", "squeeze", "unsqueeze", "select", "slice", "split", "clone", "detach", "copy", "alias"),
        *("_to_copy", "zeros_like", "ones_like", "empty_like"),
    }
)
_SAVING_THE_RESULT: Final = frozenset(
    {"relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal", "_softmax", "_log_softmax", "hardtanh"}
)
_SAVING_PARTNERS: Final = frozenset({"mul", "mm", "bmm", "addmm", "mv", "dot"})
"""Of these each operand is saved for the gradient of the others."""


def _saved_of(name: str, given: list[Any], made: list[Any]) -> Iterator[Any]:
    """Yield what the graph of an operation may have saved, of its arguments and its result."""
    name = name.partition("::")[2].removesuffix("_")
    if name in _SAVING_NOTHING:
        return
    if name in _SAVING_PARTNERS:
        # By their places: a tensor may be multiplied with itself.
        wanted = [tensor.requires_grad for tensor in given]
        yield from (one for at, one in enumerate(given) if any(wanted[:at] + wanted[at + 1 :]))
        return
    if name not in _SAVING_THE_RESULT:
        yield from given
    yield from made


def _key_of(tensor: Any) -> int | None:
    try:
        key: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return key


def _tensors_in(things: Any) -> Iterator[Any]:
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, (tuple, list)):
            yield from _tensors_in(thing)
