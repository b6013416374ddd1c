"""What every birth of a tensor inside a scope goes through, compiled.

It knows PyTorch by the objects that its types are made with, and hands everything unusual to the
Python functions among them.
"""

from collections.abc import Callable, Hashable, Iterable
from types import CodeType
from typing import Any, final

from ...scopes.compiled import ScopeState
from ...scopes.identity import Entry
from ...scopes.kinds import Kind

@final
class ThreadState:
    """The state of one thread, which the thread holds."""

    scopes: list[ScopeState]
    """The scopes that were entered on it and not left."""
    modes: tuple[object, ...]
    """What belongs onto the thread's stack of modes, the bottom first.

    The mode for births where a scope is open and needs it, and what a leak detector watches with.
    """
    watched: bool
    """Whether there are any modes."""
    compiled: Any
    """The call of a compiled function that is running, a `births.Compiled`.

    Innermost of those in whose callers a scope was entered; None where none is.
    """
    @property
    def runs_compiled(self) -> bool:
        """Whether a compiled function is running that has entered no scope."""

    pending: list[Entry]
    """Births that budgets are still to be asked about: see `births`."""
    stepping: int
    """The id of the frame of the outermost optimizer step that is running; 0 where none is.

    The mode is off the stack during that step as well. This is not the frame itself, which shall
    die when the step is over.
    """

def backward_elsewhere() -> tuple[int, list[Any]]:
    """Return how many backward passes have begun, and the roots of those other threads are in."""

def read_between(begun: int, function: Callable[[Any], Any], argument: object, /) -> Any:
    """Return ``function(argument)``; NotImplemented where another thread is in a later pass.

    The function must be compiled: no other thread runs between the question and the answer.
    """

def begin_look() -> object | None:
    """Have other threads' backward passes wait before they begin while what is returned lives.

    It waits for the look of another thread, and belongs to this one. None inside of a backward pass
    or of another look of this thread, where nothing has begun.
    """

def forget_backward() -> None:
    """Forget the backward passes and looks of other threads, after a fork."""

def thread_state() -> ThreadState:
    """Return the state of the calling thread."""

@final
class MemoryRecorder:
    """Records the memory of tensors in the log of births.

    It also calls the listeners for those that a scope owns. It does both a moment after they were
    made: where the Python object is allocated there is no memory yet.

    Parameters
    ----------
    tensor : type
        ``torch.Tensor``.
    storage_of : callable
        Its method for the storage.
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
            Its functions: see ``birth_log.h``.
        device_of : callable
            Returns the name of the device of a storage; None where it has no memory.
        look_at_other : callable
            Called with a tensor of a subclass, or without a storage of its own, such as a sparse
            one. It hands what has memory to `look_at`: that, or its parts.
        """

    def look(self) -> None:
        """Record the memory of the tensors that were made last.

        It also calls the listeners for those that a scope owns.
        """

    def look_at(self, tensor: Any, is_whole: bool = False, /) -> None:
        """Record the memory of a tensor that the log does not know, unless it is an array's.

        Where it `is_whole`, also that of an array, which compiled code has allocated.
        """

    def know(self, objects: list[Any], /) -> None:
        """Have the log know the memory of the tensors among some objects; none is reported.

        To be called where no function mode is asked.
        """

    def forget(self) -> None:
        """Forget the tensors that were made last, as in the child after a fork."""

    def lone_storage(self, tensor: Any, /) -> Hashable | None:
        """Return the identity of the storage of a plain tensor that refers to nothing else.

        None for all others: see ``Framework.lone_storage``. To be called where no function mode is
        asked.
        """

@final
class BirthWatch:
    """Sees each tensor where the memory of its Python object is allocated: see `births`.

    One watches in a process at a time.

    Parameters
    ----------
    memory : MemoryRecorder
        Records the memory of each tensor later.
    kind : Kind
        The kind of ``torch.Tensor``.
    mode : object
        The mode that asks budgets when a call is over.
    budgeted : dict
        The open scopes that have a budget.
    waiting : list
        What waits for other threads: `settle` is called now and then while it has any.
    passing : dict
        The names of the module of PyTorch whose code only hands over what it was given, for tensors
        of subclasses.
    settle : callable
        Gives back the memory of disposed tensors that no thread uses any more.
    is_born : callable
        Returns whether a scope may own the instances of a class.
    is_overridden : callable
        ``torch.overrides.has_torch_function``.
    judge : callable
        Returns what calls of a code object, given with the name of its module, are to births: a
        number of ``enum verdict``.
    judge_frames : callable
        Returns whether what runs now makes births, where its code alone does not decide it.
    give_up : callable
        Called with a tensor that becomes the model's.
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
        """See births of tensors from now on.

        Parameters
        ----------
        classes, metaclasses : tuple of type
            The class of tensors with all of its subclasses, and that of tensor classes with all of
            its own.
        attributes : tuple
            The descriptors of attributes that hand out a tensor which was there before.
        numpy : method descriptor
            The method that makes an array, which holds a Python object of its own for the memory:
            nobody's birth.
        handing : tuple
            The descriptors of `data`, `set_` and `untyped_storage`, which hand memory on: what was
            made last is looked at before.
        backward : method descriptor
            The method of the engine that runs a backward pass: where it is called the gradients are
            made that nobody has read yet.
        libraries : tuple of str
            The paths of PyTorch's libraries.
        transforms : int
            The number of the dispatch key that is included while a transform runs.

        Returns
        -------
        bool
            False where PyTorch has not what this needs; nothing is changed then.
        """

    def add_classes(self, classes: tuple[type, ...], /) -> None:
        """See births of the instances of these classes too, where births are seen."""

    def stop(self, *, classes: tuple[type, ...], metaclasses: tuple[type, ...]) -> None:
        """Stop seeing births: what `start` and `add_classes` changed is as it was. Idempotent."""

def unborn(function: Callable[[Any], Any], argument: Any, /) -> Any:
    """Call a function; the tensors that it makes on this thread are not born."""

def is_only_thread() -> bool:
    """Return whether the calling thread is the only one that the interpreter knows."""
