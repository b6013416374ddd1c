"""What every call of PyTorch inside a scope, and every disposal of a tensor, goes through, compiled.

It knows PyTorch by the objects that it is given, and hands everything unusual to the Python functions among them, which
do all of it where this module was not built or is not wanted. One copy of the package can be bound to it.
"""

from collections.abc import Callable
from typing import Any

from ..scopes._scope import DisposeScope

def bind_births(things: dict[str, Any], /) -> None:
    """Get to know what `handler_of` needs, by the names that `_torch_births` gives."""

def bind_disposal(things: dict[str, Any], /) -> None:
    """Get to know what `drop` needs, by the names that `_torch_disposal` gives."""

def bind_seam(things: dict[str, Any], /) -> None:
    """Get to know what `entered` and `left` need, by the names that `_torch_scopes` gives."""

def is_bound() -> bool:
    """Whether either has been called in this process."""

def references(function: Callable[..., object], arguments: tuple[Any, ...], /) -> int:
    """How many references the handler counts to the result of a call when it has it."""

def handler_of(mode: object, /) -> Callable[..., Any]:
    """The method ``__torch_function__`` of a mode, bound to it: see `_torch_births.BirthMode`."""

def entered(scope: DisposeScope, /) -> None:
    """See `_torch_scopes.entered`."""

def left(scope: DisposeScope, /) -> None:
    """See `_torch_scopes.left`."""

def drop(tensor: Any, /) -> None:
    """See `_torch_disposal.drop_in_python`."""
