"""PyTorch's CPU memory in a recording of lives.

PyTorch allocates this memory itself; it has no place in a slab. A dispatch mode sees the results of
every operation on the thread, those of ``backward()`` and of optimizers included. Memory is born
when a storage is in a result and was in no argument. It dies with the storage, for which PyTorch
keeps one Python object. Memory that an operation allocates and frees inside is not seen.

The mode costs some microseconds an operation, so it is on the stack only during a recording. The
modes of several recordings may be on one thread's stack, such as those of tasks: each birth is
noted by the recording that has the current scope.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, final

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ...scopes.base.process import PATCHES
from ...scopes.framework import LifeLog
from ..patches import TORCH_DISPATCH_MODES

__all__ = ["note_lives"]

# As `Any`: PyTorch does not annotate the class.
_DispatchMode: Final[Any] = TorchDispatchMode


def note_lives(lives: LifeLog) -> Callable[[], None]:
    """Note the memory that operations of this thread make in a recording, from now on.

    Returns
    -------
    callable
        Ends the noting.
    """
    mode = _NotingMode(lives)
    functions: list[Any] = [getattr(_python_dispatch, name, None) for name in _FUNCTIONS_OF_MODES]
    if None in functions:
        PATCHES.fail(TORCH_DISPATCH_MODES, f"not so: {TORCH_DISPATCH_MODES.guard}")
        mode.__enter__()
        return partial(mode.__exit__, None, None, None)
    stack = _Stack(*functions)
    stack.take_off_matching(lambda left: left.has_ended)
    if not hasattr(_here, "thread"):
        _here.thread = _OfThread(stack)
    # Not by the mode's `__enter__`: it also sets flags of the whole process. PyTorch before 2.8
    # compiles nothing while they are set. If two threads end their recordings in the order in which
    # they began them, the flags stay set.
    stack.push(mode)
    return partial(_end, stack, mode)


_FUNCTIONS_OF_MODES: Final = ("_push_mode", "_pop_mode", "_get_current_dispatch_mode_stack")


_here: Final = threading.local()


@final
class _OfThread:
    """Takes the modes off a thread's stack when the thread ends: PyTorch may abort otherwise."""

    def __init__(self, stack: _Stack) -> None:
        self._stack = stack

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._stack.take_off_matching(lambda left: True)


def _end(stack: _Stack, mode: _NotingMode) -> None:
    # Where a recording ends on another thread, the mode stays on the stack of the thread on which
    # it began, without effect, until the next recording there.
    mode.end()
    stack.take_off(mode)


class _Stack(NamedTuple):
    """The stack of dispatch modes of the current thread."""

    push: Callable[[Any], object]
    pop: Callable[[], Any]
    modes: Callable[[], list[Any]]

    def take_off_matching(self, unwanted: Callable[[_NotingMode], bool]) -> None:
        """Take off the modes of recordings for which `unwanted` returns true."""
        for mode in self.modes():
            if isinstance(mode, _NotingMode) and unwanted(mode):
                self.take_off(mode)

    def take_off(self, mode: _NotingMode) -> None:
        """Take a mode off, if it is on the stack; the modes above it stay."""
        if not any(each is mode for each in self.modes()):
            return
        # PyTorch 2.5 crashes if the stack has the only reference to a mode that is taken off.
        over: list[Any] = []
        while (top := self.pop()) is not mode:
            over.append(top)
        while over:
            self.push(over[-1])
            over.pop()


@final
class _NotingMode(_DispatchMode):  # type: ignore[misc]  # the base is Any
    """Notes the new memory in the results of operations."""

    def __init__(self, lives: LifeLog) -> None:
        _DispatchMode.__init__(self)
        self._lives: LifeLog | None = lives
        # By the address of the storage's C++ object: the number of the birth, and a weak reference
        # to the Python object of the storage.
        self._births: Final[dict[int, tuple[int | None, weakref.ref[Any]]]] = {}

    @property
    def has_ended(self) -> bool:
        return self._lives is None

    def end(self) -> None:
        """Note nothing any more, even if the mode stays on a stack."""
        self._lives = None
        self._births.clear()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        lives = self._lives
        if lives is None:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if _may_make_memory(func):
            self._note_new(result, args, kwargs, lives)
        if torch.is_grad_enabled():
            given = [*_tensors_in((*args, *kwargs.values()))]
            if any(tensor.requires_grad for tensor in given):
                for tensor in _saved_of(func._schema.name, given, [*_tensors_in((result,))]):
                    number, _ = self._births.get(_key_of(_storage_of(tensor)), (None, None))
                    if number is not None:
                        lives.note_saved(number)
        return result

    def _note_new(self, result: Any, args: Any, kwargs: Any, lives: LifeLog) -> None:
        """Note the storages in a result that were in no argument."""
        before: set[int] | None = None
        for tensor in _tensors_in((result,)):
            storage = _storage_of(tensor)
            key = _key_of(storage)
            if storage is None or key in self._births:
                continue
            if before is None:
                before = {_key_of(_storage_of(each)) for each in _tensors_in((*args, *kwargs.values()))}
            if key not in before:
                self._note(key, storage, lives)

    def _note(self, key: int, storage: Any, lives: LifeLog) -> None:
        """Note a storage as born."""
        nbytes = storage.nbytes()
        if not nbytes or storage.device.type != "cpu":
            # On another device, or without memory, as that of a fake tensor.
            return
        number = lives.note(nbytes)
        births = self._births

        def died(reference: object) -> None:
            if births.get(key, (None, None))[1] is reference:
                del births[key]
            if number is not None:
                lives.note_death(number)

        births[key] = number, weakref.ref(storage, died)


@lru_cache(maxsize=1024)
def _may_make_memory(operation: Any) -> bool:
    """Return whether a result of an operation may have memory of its own, by its schema.

    Views, and results that an operation has written to, say that they are an argument's. Some
    others are too, and do not say so, such as that of ``aten::_unsafe_view``.
    """
    return any(each.alias_info is None for each in operation._schema.returns)


def _storage_of(tensor: Any) -> Any:
    """Return the storage of a tensor; None for one without, such as a sparse or a disposed one."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        # A wrapper around other tensors, or a disposed one.
        return None


def _key_of(storage: Any) -> int:
    """Return the address of the C++ object of a storage; 0 for none."""
    return 0 if storage is None else storage._cdata


# Which tensors the graph saves of common operations, by PyTorch's
# ``tools/autograd/derivatives.yaml``. Any other operation may save all of its tensors.
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
"""Operations of which each operand is saved for the gradient of the others."""


def _saved_of(name: str, given: list[Any], made: list[Any]) -> Iterator[Any]:
    """Yield the tensors that the graph may have saved, of an operation's arguments and results."""
    name = name.partition("::")[2].removesuffix("_")
    if name in _SAVING_NOTHING:
        return
    if name in _SAVING_PARTNERS:
        # By their places: a tensor may be multiplied with itself.
        wanted = [tensor.requires_grad for tensor in given]
        yield from (tensor for place, tensor in enumerate(given) if any(wanted[:place] + wanted[place + 1 :]))
        return
    if name not in _SAVING_THE_RESULT:
        yield from given
    yield from made


def _tensors_in(things: Any) -> Iterator[Any]:
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, (tuple, list)):
            yield from _tensors_in(thing)
