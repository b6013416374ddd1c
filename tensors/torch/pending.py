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


# Which other threads may be inside an operation of PyTorch now, and which of them have left it
# since.
#
# An operation releases the global lock while it computes, and its C++ goes on to read the tensor
# through the Python object. Nothing shows which tensors a thread computes with. What can be seen is
# its stack: the frame and the instruction in which each call was made. A thread is inside an
# operation as long as that frame is there, at that instruction.
#
# Most threads of a program wait: for work, for data, for a lock, for time to pass. A call says what
# it calls by a name in the code, and the names of calls that block (`WAITING`) are none of
# PyTorch's. A thread whose innermost frame calls one of them is in no operation; nor is one that is
# about to run a function or another round of a loop. Further out, a frame is inside an operation
# where it calls something by one of PyTorch's names, or uses an operator or an attribute, and other
# Python code runs for that: a kernel written in Python. So is the caller of ``__torch_dispatch__``.
#
# A thread that was started with a function written in C has no frame: a method of a tensor can be
# given to `_thread.start_new_thread`. While more threads were started than have frames, one counts
# as computing. Threads of C++ are not among those that were started: some of PyTorch's only wait.
#
# What is not known: a thread that is in any other call of C, one that waits included, counts as
# computing until it has left that call. So does a loop that is at the same instruction whenever it
# is looked at. A function of PyTorch's that is called by a name of `WAITING` is not seen, nor is an
# operation that code of the program's own begins on a disposed tensor inside of
# ``torch._C.DisableTorchFunctionSubclass()``, outside of ``__torch_function__``. A thread without a
# frame is not seen while a thread of C++ runs Python code.


Place = tuple[int, int]
"""The id of a frame, and the instruction that it is at; -1 for any."""

_C: Final[Any] = torch._C

WAITING: Final = frozenset(
    {
        *("acquire", "fsync", "get", "input", "join", "pause", "poll", "_poll", "_select", "sleep", "wait"),
        *("accept", "_accept", "connect", "do_handshake", "getaddrinfo", "send", "sendall", "sendmsg", "sendto"),
        *("read", "_read", "readinto", "readline", "recv", "_recv", "recv_into", "recvfrom", "recvfrom_into"),
        *("recvmsg", "sigtimedwait", "sigwait", "sigwaitinfo", "wait3", "wait4", "waitid", "waitpid", "write"),
        *("GetQueuedCompletionStatus", "WaitForMultipleObjects", "WaitForSingleObject"),
        # What a thread of each Jupyter kernel is in for good; `torch.device` takes no tensor.
        *("device", "proxy"),
    }
)
"""What functions written in C that block are called, and no operation of PyTorch's."""

_FOLDER: Final = str(Path(torch.__file__).parent)
_LIBRARIES: Final = (_C._VariableFunctions, _C._nn, _C._linalg, _C._fft, _C._special, _C._sparse, _C._nested, operator)
_CALLERS: Final = ("all", "any", "filter", "list", "map", "max", "min", "reduce", "set", "sorted", "sum", "tuple")

OPERATIONS: Final = frozenset(itertools.chain(dir(_C.TensorBase), *map(dir, _LIBRARIES), _CALLERS))
"""What operations of PyTorch are called, and functions written in C that may call one."""

# Where the interpreter lets other threads run between two instructions, and where a block enters a
# lock.
_BETWEEN: Final = frozenset({"BEFORE_WITH", "JUMP_BACKWARD", "RESUME"})
# What such frames do ends in their caller: they are no kernel.
_GENERATOR: Final = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR

# A frame, its code and the instruction that it is at.
_Row = tuple[int, CodeType, int]

_WITHOUT_FRAME: Final = -1
"""Stands for all threads that were started and have no frame, where threads go by their number."""
_IN_C: Final[Place] = (0, -1)
"""The place of such a thread."""


@final
class _Started:
    """The threads that Python started, by their count. The one instance is `_STARTED`."""

    __slots__ = ("_ended_by_fork",)

    def __init__(self) -> None:
        self._ended_by_fork = 0

    def forget(self) -> None:
        """Forget those of the parent in a child after a fork: Python's count still has them."""
        self._ended_by_fork = count_of_threads()

    def without_frame(self, counted: int, framed: Iterable[int]) -> int:
        """Return how many have no frame, given Python's count and the threads that have one."""
        main = threading.main_thread().ident
        return counted - self._ended_by_fork - sum(thread != main for thread in framed)


_STARTED: Final = _Started()


def _stacks_of_others() -> dict[int, list[_Row]]:
    """Return the stack of each other thread, the innermost frame first.

    That of `_WITHOUT_FRAME` is empty; it is there where a thread has no frame.
    """
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
        # One call of C follows all of them, so that no thread runs meanwhile; nor does a collection
        # let one.
        answers: list[Any] = list(itertools.chain(count, map(list, walks)))
        framed = list(next(again))
    finally:
        if collects:
            gc.enable()
        # They refer to this frame.
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
    """Return whether a frame may be inside an operation, given what runs further in."""
    if inner is None:
        instruction, name = called_by(code, last)
        opname = instruction.opname
        return opname not in _BETWEEN and not (opname.startswith(CALLS) and name in WAITING)
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
            # It lets operations begin on a tensor of any class, as long as it runs.
            places.add((frame, -1))
        elif is_kernel or _is_operation(code, last, inner):
            places.add((frame, last))
        # The operation that a kernel belongs to was called further out, perhaps through functions
        # of PyTorch's.
        is_kernel = code.co_name == "__torch_dispatch__" or (is_kernel and code.co_filename.startswith(_FOLDER))
        inner = code
    return frozenset(places)


@final
class Operations:
    """What is known of the operations that other threads are inside of."""

    __slots__ = ("_known",)

    # Of each thread its stack when it was last looked at, and what that meant: most are where they
    # were.
    _known: dict[int, tuple[list[_Row], frozenset[Place]]]

    def __init__(self) -> None:
        self._known = {}

    def in_flight(self) -> dict[int, frozenset[Place]]:
        """Return the places of the operations that other threads are inside of, by thread.

        Threads that are in none are left out.
        """
        known: dict[int, tuple[list[_Row], frozenset[Place]]] = {}
        for thread, stack in _stacks_of_others().items():
            before = self._known.get(thread)
            known[thread] = before if before is not None and before[0] == stack else (stack, _operations_in(stack))
        self._known = known
        return {thread: places for thread, (_, places) in known.items() if places}


@final
class Places:
    """Where each thread is now.

    Parameters
    ----------
    refused : frame, optional
        A frame of the calling thread, in no operation any more.
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
        """Return those of some places, by thread, that the threads have not left."""
        there = {thread: places & self._places[thread] for thread, places in places.items() if thread in self._places}
        return {thread: places for thread, places in there.items() if places}


is_only_thread: Final[Callable[[], bool]] = TORCH_COMPILED.is_only_thread
"""Return whether the interpreter knows no other thread than this one, with or without frames."""


# An operation of PyTorch that another thread is inside of reads the tensor through the Python
# object that it was given, without the global lock: what lies in that object must stay until the
# operation is over. So the class of a disposed tensor changes at once, which lets no operation
# begin, and the rest waits until each thread that was in an operation then has left it. It waits as
# well while C++ refers weakly to the tensor and a graph holds it, as after ``retain_grad()``.
#
# Whether something waits no longer is asked where a scope is entered or left, when releases are
# done, where a tensor is made while something waits, where a disposed one is refused, where a
# thread ends and where memory is counted. A handle that dies meanwhile takes its memory along.


@final
class _Batch:
    """What waits for the same operations.

    Attributes
    ----------
    places : dict
        Where they are: see `Operations.in_flight`.
    tensors : list of weak reference
        The disposed tensors.
    held : object, optional
        What is kept alive meanwhile.
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
        Called with a disposed tensor that no other thread computes with: gives its memory back, and
        returns whether that could be done.

    Attributes
    ----------
    fresh : list of weak reference
        Tensors disposed since other threads were last looked at.
    batches : list
        What waits; empty where nothing does.
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
        """Have a tensor wait whose class has been changed.

        Other threads are looked at when all releases are done.
        """
        if not self.fresh:
            after_releases(self.settle)
        self.fresh.append(ref(tensor))

    def keep(self, tensor: object) -> None:
        """Have a tensor wait whose memory could not be given back, for no other thread."""
        self.batches.append(_Batch({}, [ref(tensor)]))

    def hold(self, thing: object) -> None:
        """Keep something alive that operations of other threads may read yet."""
        places = {} if is_only_thread() else self._operations.in_flight()
        if places:
            self.batches.append(_Batch(places, [], thing))

    def settle(self, refused: FrameType | None = None) -> None:
        """Give back what waits no longer.

        To be called anywhere, and often: one thread at a time does it.

        Parameters
        ----------
        refused : frame, optional
            The frame of this thread whose operation is being refused: that one is over.
        """
        # A thread that finds the lock taken leaves its question to the one that has it, which may
        # have looked at the threads before this one left its operation.
        self._asked = True
        while self._asked and not self._lock.locked():
            # Not by acquire(): an interrupt that came up right after it would leave the lock taken
            # for ever.
            with self._lock:
                self._asked = False
                self._settle(refused)

    def waiting(self) -> list[Any]:
        """Return the disposed tensors whose memory waits."""
        references = [*self.fresh, *(reference for batch in self.batches for reference in batch.tensors)]
        return [tensor for tensor in map(operator.call, references) if tensor is not None]

    def forget_threads(self) -> None:
        """Replace the lock in a child after a fork, where no other thread is."""
        self._lock = threading.Lock()
        _STARTED.forget()

    def _settle(self, refused: FrameType | None) -> None:
        batches = self.batches[:]
        if any(batch.places for batch in batches):
            places = Places(refused)
            for batch in batches:
                batch.places = places.of(batch.places)
        if self.fresh:
            # No operation has begun on these since their class was changed, which was before this
            # look.
            added = len(self.fresh)
            batch = _Batch(self._operations.in_flight(), self.fresh[:added])
            self.batches.append(batch)
            del self.fresh[:added]
            batches.append(batch)
        # What a transform does to tensors from outside of it is refused.
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
