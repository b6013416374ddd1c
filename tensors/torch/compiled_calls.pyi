"""The memory of what PyTorch's functions return, put into the birth log, compiled.

Absent where it could not be built; `watching` does the same in Python then, by a mode.
"""

from collections.abc import Callable, Hashable
from typing import Any

def bind(
    api: object,
    tensor_type: type,
    storage_of: Callable[[Any], Any],
    nbytes_of: Callable[[Any], int],
    device_of: Callable[[Any], str | None],
    kind: str,
    cpu: str,
    /,
) -> None:
    """Learn what to ask of PyTorch."""

def find_calls(
    api: object,
    functions: list[tuple[Any, str | None]],
    attributes: list[Any],
    items: Any,
    constructors: list[type],
    others: Callable[[Any, Any, Any, Any, Any], object],
    moved: Callable[[Any, Any, Any, Any, Any], object],
    assigned: Callable[[str, Any, Any], object],
    /,
) -> bool:
    """Find the entries by which Python calls functions, once in a process: see `watching.Calls.find`.

    Parameters
    ----------
    api : capsule
        That of ``compiled``.
    functions : list of tuple
        Compiled functions and method descriptors, with what they are to be called; None where one gives views alone.
    attributes : list
        Descriptors of attributes that can be assigned.
    items : slot wrapper
        That of the class of tensors by which they are indexed.
    constructors : list of type
        Classes that make tensors when they are called.

    Returns
    -------
    bool
        False where one of them is not of the kind that is known; calls cannot be watched then.
    """

def watch_calls(watch: bool, /) -> None:
    """Put the memory of what they return down from now on, or no longer, on every thread."""

def are_calls_watched() -> bool:
    """Whether that is so now."""

def operator_method(cls: type, before: Callable[..., Any], /) -> Any:
    """A method for a class of operators that calls another one, and puts the memory of what it returned down."""

def sight(tensor: Any, func: Any, args: Any, kwargs: Any, /) -> None:
    """Put the memory of a tensor down, unless an argument has it. `func` is what was called, or its name."""

def alone(tensor: Any, /) -> Hashable | None:
    """The identity of the storage of a plain tensor that refers to nothing else: see ``Framework.alone``.

    None before `bind`, and of all other tensors. To be called where no function mode is asked.
    """
