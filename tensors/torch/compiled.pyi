"""What every birth of a tensor inside a scope, and every disposal of one, goes through, compiled.

It knows PyTorch by the objects that it is given, and hands everything unusual to the Python functions among them. One
copy of the package can be bound to it.
"""

from collections.abc import Callable, Hashable
from typing import Any

from ...scopes.scope import DisposeScope

def bind_births(things: dict[str, Any], /) -> None:
    """Get to know what births need, by the names that `births` gives."""

def watch_births(
    classes: tuple[type, ...],
    metaclasses: tuple[type, ...],
    attributes: tuple[Any, ...],
    numpy: Any,
    handing: tuple[Any, ...],
    passing: dict[str, Any],
    libraries: tuple[str, ...],
    transforms: int,
    /,
) -> bool:
    """See births of tensors from now on, once in a process: see `births`.

    Parameters
    ----------
    classes, metaclasses : tuple of type
        The class of tensors with all of its subclasses, and that of tensor classes with all of its own.
    attributes : tuple
        The descriptors of attributes that hand out a tensor which was there before.
    numpy : method descriptor
        The method that makes an array, which holds a Python object of its own for the memory: nobody's birth.
    handing : tuple
        The descriptors of `data`, `set_` and `untyped_storage`, which hand memory on: what was made last is looked at
        before.
    passing : dict
        The names of the module of PyTorch whose code only hands over what it was given, for tensors of subclasses.
    libraries : tuple of str
        The paths of PyTorch's libraries.
    transforms : int
        The number of the dispatch key that is included while a transform runs.

    Returns
    -------
    bool
        False where PyTorch has not what this needs; nothing is changed then.
    """

def watch_classes(classes: tuple[type, ...], /) -> bool:
    """See births of the instances of these classes too."""

def bind_disposal(things: dict[str, Any], /) -> None:
    """Get to know what `drop` needs, by the names that `disposal` gives."""

def bind_seam(things: dict[str, Any], /) -> None:
    """Get to know what `entered` and `left` need, by the names that `threads` gives."""

def unborn(function: Callable[[Any], Any], argument: Any, /) -> Any:
    """Call a function; the tensors that it makes on this thread are not born."""

def bind_log(things: dict[str, Any], /) -> None:
    """Get to know what `look` needs where a leak detector is used, by the names that `watching` gives."""

def look() -> None:
    """Record the memory of the tensors that were made last, and call the listeners about those that a scope owns."""

def look_at(tensor: Any, /) -> None:
    """Record the memory of a tensor that the log does not know, unless it is an array's."""

def know(get_objects: Callable[[], list[Any]], /) -> None:
    """Have the log know the memory of the tensors among the objects that a function returns; nothing is reported of it.

    To be called where no function mode is asked.
    """

def forget_looks() -> None:
    """Forget the tensors that were made last, as in the child after a fork."""

def identity_if_alone(tensor: Any, /) -> Hashable | None:
    """Return the identity of the storage of a plain tensor that refers to nothing else: see ``Framework.alone``.

    None of all other tensors. To be called where no function mode is asked.
    """

def entered(scope: DisposeScope, /) -> None:
    """See `threads.entered`."""

def left(scope: DisposeScope, /) -> None:
    """See `threads.left`."""

def drop(tensor: Any, /) -> None:
    """Make a handle dead. Its storage is freed where nobody else has it: see `disposal`."""

def spare() -> Any:
    """A tensor of the class `disposal.Spare`; some are made ahead."""
