"""The compiled part that handles every birth of a tensor inside a scope.

PyTorch's classes are passed to its types as arguments, and so are Python functions that are called
in unusual cases.
"""

from collections.abc import Callable, Hashable, Iterable
from types import CodeType
from typing import Any, final

from ...scopes.compiled import ScopeState
from ...scopes.identity import Entry
from ...scopes.kinds import Kind

@final
class ThreadState:
    """The state of one thread, which the dict of the thread holds."""

    scopes: list[ScopeState]
    """The scopes that were entered and not left on the thread."""
    modes: tuple[object, ...]
    """The modes of this package on the thread's stack of modes, the bottom first.

    They are the mode that asks budgets, while a scope needs it, and those of a leak detector.
    """
    watched: bool
    """Whether there are any modes."""
    compiled: Any
    """The call of a compiled function that is running, a `births.Compiled`, or None.

    The innermost call of those whose callers have entered a scope.
    """
    @property
    def runs_compiled(self) -> bool:
        """Whether a compiled function is running that has entered no scope."""

    pending: list[Entry]
    """Entries of births about which no budget was asked yet: see `births`."""
    stepping: int
    """The ``id`` of the frame of the outermost optimizer step that is running; 0 if none is.

    With `births.TRACING` added, the frame does other work that makes no births. The mode is off the
    stack meanwhile. An ``id``, so that the frame can die when the step is over.
    """

def backward_elsewhere() -> tuple[int, list[Any]]:
    """Return how many backward passes have begun, and the roots of those on other threads.

    The roots are the tensors that a running pass begins with.
    """

def read_between(begun: int, function: Callable[[Any], Any], argument: object, /) -> Any:
    """Return ``function(argument)``, if no pass has begun on another thread since.

    NotImplemented if such a pass is running. `begun` is the number that `backward_elsewhere`
    returned. The function must be compiled, so that no other thread runs between check and call.
    """

def begin_look() -> object | None:
    """Make backward passes of other threads wait before they begin, while the result is alive.

    Waits for the end of another thread's look. None inside of a backward pass or of another look of
    this thread: no look has begun then.
    """

def forget_backward() -> None:
    """Forget the backward passes and looks of other threads, after a fork."""

def thread_state() -> ThreadState:
    """Return the state of the calling thread."""

@final
class MemoryRecorder:
    """Records the memory of tensors in the log of births, and tells listeners of owned tensors.

    It does so some time after the birth, because a tensor has no memory yet when its Python object
    is allocated.

    Parameters
    ----------
    tensor : type
        ``torch.Tensor``.
    storage_of : callable
        Its method ``untyped_storage``.
    """

    def __init__(self, *, tensor: type, storage_of: Callable[[Any], Any]) -> None: ...
    def record_into(
        self,
        log: object,
        /,
        *,
        device_of: Callable[[Any], str | None],
        look_at_other: Callable[[Any], object],
    ) -> None:
        """Record memory in a log of births from now on, while that is open.

        Parameters
        ----------
        log : capsule
            The functions of the log: see ``birth_log.h``.
        device_of : callable
            Returns the name of the device of a storage; None if it has no memory.
        look_at_other : callable
            Called with a tensor of a subclass, or without a storage, such as a sparse one. It calls
            `look_at` with the plain tensors that have the memory: the tensor, or its parts.
        """

    def look(self) -> None:
        """Record the memory of the latest tensors, and tell listeners of owned ones."""

    def look_at(self, tensor: Any, is_whole: bool = False, /) -> None:
        """Record the memory of a tensor, if the log does not know it and PyTorch allocated it.

        With `is_whole`, also memory that PyTorch did not allocate, but compiled code.
        """

    def know(self, objects: list[Any], /) -> None:
        """Exclude the memory of the tensors among some objects from reports.

        To be called with torch functions disabled.
        """

    def forget(self) -> None:
        """Forget the latest tensors, as in the child after a fork."""

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the identity of the storage of a plain tensor that refers to nothing else.

        None for other tensors: see ``Framework.lone_storage``. To be called with torch functions
        disabled.
        """

@final
class BirthWatch:
    """Sees each tensor when its Python object is allocated: see `births`.

    Only one watches in a process at a time.

    Parameters
    ----------
    memory : MemoryRecorder
        Records the memory of each tensor later.
    kind : Kind
        The kind of ``torch.Tensor``.
    mode : object
        The mode that asks budgets at the end of a call.
    budgeted : dict
        The open scopes that have a budget.
    waiting : list
        Disposals that wait for other threads. While there are any, `settle` is called now and then.
    passing : dict
        The globals of the module of PyTorch that dispatches calls with tensors of subclasses.
    settle : callable
        Frees the memory of disposed tensors that no thread uses any more.
    is_born : callable
        Returns whether a scope may own the instances of a class.
    is_overridden : callable
        ``torch.overrides.has_torch_function``.
    judge : callable
        Given a code object and the name of its module, returns a number of ``enum verdict``: what
        calls of the code are to births.
    judge_frames : callable
        Returns whether the running frames make births, for code of the verdict ASKS.
    give_up : callable
        Called with a tensor that belongs to a model from now on.
    push_mode : callable
        Puts `mode` on the stack of the calling thread.
    """

    def __init__(
        self,
        *,
        memory: MemoryRecorder,
        kind: Kind,
        mode: object,
        budgeted: dict[ScopeState, None],
        waiting: list[Any],
        passing: dict[str, Any],
        settle: Callable[[], object],
        is_born: Callable[[type], bool],
        is_overridden: Callable[[Iterable[Any]], bool],
        judge: Callable[[CodeType, object], int],
        judge_frames: Callable[[], bool],
        give_up: Callable[[object], object],
        push_mode: Callable[[], object],
    ) -> None: ...
    @property
    def allocations(self) -> int:
        """How many tensors have been seen when they were allocated."""

    def start(
        self,
        *,
        classes: tuple[type, ...],
        metaclasses: tuple[type, ...],
        attributes: tuple[Any, ...],
        numpy: Any,
        handing: tuple[Any, ...],
        backward: Any,
        libraries: tuple[str, ...],
        transforms: int,
    ) -> bool:
        """Begin to watch: see births of tensors from now on.

        Parameters
        ----------
        classes, metaclasses : tuple of type
            ``torch.Tensor`` and all its subclasses; its metaclass and all subclasses of that.
        attributes : tuple
            The descriptors of attributes that return a tensor which existed before.
        numpy : method descriptor
            ``numpy``: the array refers to a new tensor object, which is no birth.
        handing : tuple
            The descriptors of `data`, `set_` and `untyped_storage`, which hand memory on: the
            latest tensors are looked at before.
        backward : method descriptor
            The method of the engine that runs a backward pass. The place of its call is the birth
            site of gradients that are read later.
        libraries : tuple of str
            The paths of PyTorch's libraries.
        transforms : int
            The number of the dispatch key that is included while a transform runs.

        Returns
        -------
        bool
            False if this PyTorch is not as expected; nothing is changed then.
        """

    def add_classes(self, classes: tuple[type, ...], /) -> None:
        """Watch the instances of more classes, if it watches."""

    def stop(self, *, classes: tuple[type, ...], metaclasses: tuple[type, ...]) -> None:
        """Stop watching, and undo all changes of `start` and `add_classes`. Idempotent."""

def unborn(function: Callable[[Any], Any], argument: Any, /) -> Any:
    """Call a function. Tensors that it makes on this thread are no births."""

def is_only_thread() -> bool:
    """Return whether the calling thread is the only one that the interpreter knows."""
