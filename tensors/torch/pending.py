"""Disposed tensors whose memory waits until no other thread can be computing with them."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
import threading
from _thread import _count as count_of_threads
from collections.abc import Callable, Iterable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from pathlib import Path
from threading import get_ident
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any, Final, final
from weakref import ref

import torch

from ...scopes.base.sites import CALLS, called_by
from ...scopes.context import after_releases
from . import compiled as TORCH_COMPILED

__all__ = [
    "OPERATIONS",
    "WAITING",
    "Operations",
    "PendingDisposals",
    "Places",
    "is_only_thread",
]


# Which other threads may be inside an operation of PyTorch, and which of them have left it.
#
# An operation releases the global lock while it computes, and its C++ code reads the tensor through
# the Python object. Python cannot ask which tensors a thread computes with. It can look at the
# thread's stack: each frame and the instruction that it is at. A thread is inside an operation
# until the frame that called the operation has ended or is at another instruction.
#
# Most threads of a program wait: for work, for data, for a lock, for time to pass. The bytecode
# contains the name of the function that is called, and no operation of PyTorch has a name in
# `WAITING`. A thread is in no operation where its innermost frame calls one of these names, or is
# about to run a function or another round of a loop. A frame further out is inside an operation
# where it calls a name in `OPERATIONS`, or uses an operator or an attribute, and runs Python code
# for it: a kernel written in Python. So is a frame that calls ``__torch_dispatch__``.
#
# A thread that was started with a function written in C has no frame: a method of a tensor can be
# passed to `_thread.start_new_thread`. While more threads were started than have frames, one thread
# counts as computing. Python does not count threads that C++ started: some of PyTorch's only wait.
#
# Limits: a thread that is in any other call of C counts as computing until it has left the call,
# even if it only waits. So does a loop that is found at the same instruction each time. These
# operations are not noticed: one that is called by a name in `WAITING`; one that a program begins
# on a disposed tensor inside ``torch._C.DisableTorchFunctionSubclass()``, outside of
# ``__torch_function__``; one in a thread without a frame while a thread of C++ runs Python code.


Place = tuple[int, int]
"""The id of a frame, and the offset of the instruction that it is at; -1 for any instruction."""

_C: Final[Any] = torch._C

WAITING: Final = frozenset(
    {
        *("acquire", "fsync", "get", "input", "join", "pause", "poll", "_poll", "_select", "sleep", "wait"),
        *("accept", "_accept", "connect", "do_handshake", "getaddrinfo", "send", "sendall", "sendmsg", "sendto"),
        *("read", "_read", "readinto", "readline", "recv", "_recv", "recv_into", "recvfrom", "recvfrom_into"),
        *("recvmsg", "sigtimedwait", "sigwait", "sigwaitinfo", "wait3", "wait4", "waitid", "waitpid", "write"),
        *("GetQueuedCompletionStatus", "WaitForMultipleObjects", "WaitForSingleObject"),
        # A thread of each Jupyter kernel never leaves these calls; `torch.device` takes no tensor.
        *("device", "proxy"),
    }
)
"""Names of functions written in C that block. No operation of PyTorch has one of these names."""

_FOLDER: Final = str(Path(torch.__file__).parent)
_FUNCTIONS_OF: Final = (
    _C._VariableFunctions,
    _C._nn,
    _C._linalg,
    _C._fft,
    _C._special,
    _C._sparse,
    _C._nested,
    operator,
)
_CALLERS: Final = ("all", "any", "filter", "list", "map", "max", "min", "reduce", "set", "sorted", "sum", "tuple")

OPERATIONS: Final = frozenset(itertools.chain(dir(_C.TensorBase), *map(dir, _FUNCTIONS_OF), _CALLERS))
"""Names of PyTorch's operations, and of functions written in C that may call one (`_CALLERS`)."""

# Instructions at which the interpreter switches threads, and the one by which a ``with`` block
# enters a lock. A thread at one of them is in no operation.
_SWITCH_POINTS: Final = frozenset({"BEFORE_WITH", "JUMP_BACKWARD", "RESUME"})
# Flags of the code of generators and coroutines. They run for their caller and are no kernel.
_GENERATOR: Final = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR

# The id of a frame, its code and the offset of the instruction that it is at.
_Row = tuple[int, CodeType, int]

_WITHOUT_FRAME: Final = -1
"""Used in place of a thread's identifier: all threads that were started and have no frame."""
_IN_C: Final[Place] = (0, -1)
"""The place of a thread without a frame."""


@final
class _Started:
    """Counts the threads that Python started. The only instance is `_STARTED`."""

    __slots__ = ("_ended_by_fork",)

    def __init__(self) -> None:
        self._ended_by_fork = 0

    def forget(self) -> None:
        """Forget the parent's threads in a child after a fork: Python still counts them."""
        self._ended_by_fork = count_of_threads()

    def without_frame(self, counted: int, framed: Iterable[int]) -> int:
        """Return how many threads have no frame.

        Parameters
        ----------
        counted : int
            The threads that Python counts.
        framed : iterable of int
            The identifiers of the threads that have a frame.
        """
        main = threading.main_thread().ident
        return counted - self._ended_by_fork - sum(thread != main for thread in framed)


_STARTED: Final = _Started()


def _stacks_of_others() -> dict[int, list[_Row]]:
    """Return the stack of each other thread, the innermost frame first.

    There is an empty stack for `_WITHOUT_FRAME` where a thread has no frame.
    """
    # The threads must not run between the count and the walks. So everything is built from
    # iterators written in C, and one call below runs them all.
    here = get_ident()
    count: Any = itertools.islice(iter(count_of_threads, None), 1)
    taken, again = itertools.tee(itertools.islice(iter(sys._current_frames, None), 1))
    innermost: Any = itertools.chain.from_iterable(map(operator.methodcaller("values"), taken))
    others: Any = itertools.filterfalse(functools.partial(operator.is_, sys._getframe()), innermost)
    steps: Any = itertools.repeat(itertools.repeat("f_back"))
    walks: Any = map(itertools.accumulate, map(itertools.chain, zip(others), steps), itertools.repeat(getattr))
    walks = map(itertools.takewhile, itertools.repeat(operator.truth), walks)
    collects = gc.isenabled()
    try:
        # Inside, so that an interrupt right after it does not leave the collector off.
        gc.disable()
        # A collection could run Python code, and that lets another thread run: hence gc.disable().
        answers: list[Any] = list(itertools.chain(count, map(list, walks)))
        framed = list(next(again))
    finally:
        if collects:
            gc.enable()
        # These refer to this frame: a reference cycle otherwise.
        del taken, again, innermost, others, walks
    counted, *frames = answers
    threads = [thread for thread in framed if thread != here]
    stacks = {thread: [_row(frame) for frame in stack] for thread, stack in zip(threads, frames, strict=True)}
    if _STARTED.without_frame(counted, framed) > 0:
        stacks[_WITHOUT_FRAME] = []
    return stacks


def _row(frame: FrameType) -> _Row:
    return id(frame), frame.f_code, frame.f_lasti


def _is_operation(code: CodeType, last: int, inner: CodeType | None) -> bool:
    """Return whether a frame may be inside an operation.

    Parameters
    ----------
    code : code
        The frame's code.
    last : int
        The offset of the instruction that it is at.
    inner : code, optional
        The code of the frame that it called; None where it is the innermost.
    """
    if inner is None:
        instruction, name = called_by(code, last)
        opname = instruction.opname
        return opname not in _SWITCH_POINTS and not (opname.startswith(CALLS) and name in WAITING)
    if inner.co_flags & _GENERATOR or (inner.co_name.startswith("__") and not inner.co_name.startswith("__torch_")):
        return False
    instruction, name = called_by(code, last)
    return name != inner.co_name and (name in OPERATIONS or not instruction.opname.startswith(CALLS))


def _operations_in(stack: list[_Row]) -> frozenset[Place]:
    if not stack:
        return frozenset({_IN_C})
    places: set[Place] = set()
    inner: CodeType | None = None
    is_kernel = False
    for frame, code, last in stack:
        if code.co_name == "__torch_function__":
            # While it runs it can begin operations on a tensor of any class, at any instruction.
            places.add((frame, -1))
        elif is_kernel or _is_operation(code, last, inner):
            places.add((frame, last))
        # The next frame further out called the operation that this kernel belongs to, or is a
        # function of PyTorch on the way to it.
        is_kernel = code.co_name == "__torch_dispatch__" or (is_kernel and code.co_filename.startswith(_FOLDER))
        inner = code
    return frozenset(places)


@final
class Operations:
    """Finds the operations that other threads are inside of."""

    __slots__ = ("_known",)

    # The last stack of each thread and the places found in it: most threads have not moved since,
    # and are not searched again.
    _known: dict[int, tuple[list[_Row], frozenset[Place]]]

    def __init__(self) -> None:
        self._known = {}

    def in_flight(self) -> dict[int, frozenset[Place]]:
        """Return the places of the operations that other threads are inside of, by thread.

        Threads that are in no operation are left out.
        """
        known: dict[int, tuple[list[_Row], frozenset[Place]]] = {}
        for thread, stack in _stacks_of_others().items():
            before = self._known.get(thread)
            known[thread] = before if before is not None and before[0] == stack else (stack, _operations_in(stack))
        self._known = known
        return {thread: places for thread, (_, places) in known.items() if places}


@final
class Places:
    """The places at which each thread is now.

    Parameters
    ----------
    refused : frame, optional
        A frame of the calling thread whose operation was refused: it counts as in no operation.
    """

    __slots__ = ("_places",)

    def __init__(self, refused: FrameType | None = None) -> None:
        stacks = _stacks_of_others()
        stacks[get_ident()] = [_row(frame) for frame, _ in walk_stack(sys._getframe()) if frame is not refused]
        self._places = {
            thread: {(frame, place) for frame, _, last in stack for place in (last, -1)} or {_IN_C}
            for thread, stack in stacks.items()
        }

    def of(self, places: dict[int, frozenset[Place]]) -> dict[int, frozenset[Place]]:
        """Return the given places, by thread, without those that the threads have left."""
        there = {thread: places & self._places[thread] for thread, places in places.items() if thread in self._places}
        return {thread: places for thread, places in there.items() if places}


is_only_thread: Final[Callable[[], bool]] = TORCH_COMPILED.is_only_thread
"""Return whether the interpreter knows no other thread than this one, with or without frames."""


# How a tensor is disposed while other threads compute.
#
# An operation in another thread reads the tensor's implementation through the Python object,
# without the global lock, so the implementation must stay there until the operation is over. The
# class of a disposed tensor changes at once, so that no new operation can begin. The implementation
# is taken out when each thread that was in an operation at that time has left it. It also waits
# while C++ refers weakly to the tensor and a graph holds it, as after ``retain_grad()``.
#
# `PendingDisposals.settle` checks whether the waiting is over. It is called when a scope is entered
# or left, when releases are done, when a tensor is made while disposals wait, when the use of a
# disposed tensor is refused, when a thread ends and when memory is counted. If the Python object of
# a waiting tensor is freed, its memory is freed with it.


@final
class _Batch:
    """Disposed tensors that wait for the same operations.

    Attributes
    ----------
    places : dict
        The places of these operations: see `Operations.in_flight`.
    tensors : list of weak reference
        The disposed tensors.
    held : object, optional
        An object that is kept alive until the operations are over.
    """

    __slots__ = ("held", "places", "tensors")

    def __init__(
        self, places: dict[int, frozenset[Place]], tensors: list[ref[Any]], held: object | None = None
    ) -> None:
        self.places = places
        self.tensors = tensors
        self.held = held


@final
class PendingDisposals:
    """The disposed tensors whose memory cannot be given back yet.

    Parameters
    ----------
    give_back : callable
        Gives back the memory of a disposed tensor that no other thread computes with. Returns
        whether that was possible.

    Attributes
    ----------
    fresh : list of weak reference
        Tensors disposed since the stacks of other threads were last read.
    batches : list
        The batches that wait.
    """

    __slots__ = ("_asked", "_give_back", "_lock", "_operations", "batches", "fresh")

    def __init__(self, give_back: Callable[[Any], bool]) -> None:
        self._give_back = give_back
        self._operations = Operations()
        self._lock = threading.Lock()
        self._asked = False
        self.batches: list[_Batch] = []
        self.fresh: list[ref[Any]] = []

    def add(self, tensor: object) -> None:
        """Let a tensor wait whose class has just been changed.

        The stacks of other threads are read once, when all releases are done.
        """
        if not self.fresh:
            after_releases(self.settle)
        self.fresh.append(ref(tensor))

    def keep(self, tensor: object) -> None:
        """Let a tensor wait whose memory could not be given back, though no thread uses it."""
        self.batches.append(_Batch({}, [ref(tensor)]))

    def hold(self, thing: object) -> None:
        """Keep an object alive while operations of other threads may read it."""
        places = {} if is_only_thread() else self._operations.in_flight()
        if places:
            self.batches.append(_Batch(places, [], thing))

    def settle(self, refused: FrameType | None = None) -> None:
        """Give back the memory of the tensors whose wait is over. One thread at a time does it.

        Parameters
        ----------
        refused : frame, optional
            The frame of this thread whose operation is being refused: the operation is over.
        """
        # A thread that finds the lock taken only sets the flag. The thread that has the lock may
        # have read the stacks before this thread left its operation, so it starts again.
        self._asked = True
        while self._asked and not self._lock.locked():
            # Not acquire(): an interrupt right after it would leave the lock taken for ever.
            with self._lock:
                self._asked = False
                self._settle(refused)

    def waiting(self) -> list[Any]:
        """Return the disposed tensors whose memory waits."""
        references = [*self.fresh, *(reference for batch in self.batches for reference in batch.tensors)]
        return [tensor for tensor in map(operator.call, references) if tensor is not None]

    def forget_threads(self) -> None:
        """Replace the lock in a child after a fork, which has no other threads."""
        self._lock = threading.Lock()
        _STARTED.forget()

    def _settle(self, refused: FrameType | None) -> None:
        batches = self.batches[:]
        if any(batch.places for batch in batches):
            places = Places(refused)
            for batch in batches:
                batch.places = places.of(batch.places)
        if self.fresh:
            # Their class was changed before the stacks are read here, so only operations that are
            # found now can use these tensors.
            added = len(self.fresh)
            batch = _Batch(self._operations.in_flight(), self.fresh[:added])
            self.batches.append(batch)
            del self.fresh[:added]
            batches.append(batch)
        # PyTorch refuses to change, inside a transform, tensors that were made outside of it.
        is_outside = _C._functorch.peek_interpreter_stack() is None
        for batch in batches:
            if batch.places or not is_outside:
                batch.tensors = [waiting for waiting in batch.tensors if waiting() is not None]
            else:
                batch.held = None
                batch.tensors = [waiting for waiting in batch.tensors if not self._is_done(waiting)]
            if not batch.tensors and batch.held is None:
                self.batches.remove(batch)

    def _is_done(self, waiting: ref[Any]) -> bool:
        tensor = waiting()
        return tensor is None or self._give_back(tensor)
