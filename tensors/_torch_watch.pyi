"""A mode for PyTorch's functions that puts the memory of what they return into the birth log, compiled.

Absent where it could not be built; `_torch_sightings` does the same in Python then.
"""

from collections.abc import Callable, Hashable
from typing import Any, final

@final
class Watch:
    """The mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = ..., kwargs: Any = ..., /) -> Any:
        """Call `func`, and put the memory of its result down."""

def bind(
    api: object,
    tensor_type: type,
    storage_of: Callable[[Any], Any],
    nbytes_of: Callable[[Any], int],
    backward_running: Callable[[], int],
    others: Callable[[Any, Any, Any, Any], object],
    device_of: Callable[[Any], str | None],
    given: Callable[[Any, Any], object],
    particular: tuple[object, ...],
    plain: tuple[type, ...],
    wrapper_type: type,
    kind: str,
    cpu: str,
    /,
) -> None:
    """Learn what to ask of PyTorch: `others` where a result is no plain tensor, or that of a `particular` function."""

def sight(tensor: Any, func: Any, args: Any, kwargs: Any, /) -> None:
    """Put the memory of a tensor down, unless an argument has it."""

def alone(tensor: Any, /) -> Hashable | None:
    """The identity of the storage of a plain tensor that refers to nothing else: see ``Framework.alone``.

    None before `bind`, and of all other tensors. To be called where no function mode is asked.
    """
