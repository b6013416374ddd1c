"""Release JAX arrays, and raise an error for their use afterwards.

``Array.delete()`` gives the memory back, and JAX itself refuses an array that was deleted, on every
path but one: ``is_ready()`` reads through a null pointer (jaxlib 0.10.2). Where this library
deleted it, the error is `DisposedError`.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import Any, Final

from ...scopes.base.process import PATCHES
from ...scopes.framework import recording
from ...scopes.identity import dead_entry_of, disposed_error
from ...scopes.kinds import kind_of
from ..arena.budgets import BUDGETS
from ..patches import JAX_METHODS
from ..tensor.buffers import BUFFERS
from .births import ARRAY, BIRTHS, look, pass_over_aliases

__all__ = [
    "refuse_after_disposal",
    "release",
]

_CHECK: Final = "_check_if_deleted"
# These methods reach the memory without that check.
_UNCHECKED: Final = (
    "block_until_ready",
    "copy_to_host_async",
    "is_ready",
    "on_device_size_in_bytes",
    "unsafe_buffer_pointer",
)


def release(array: Any) -> None:
    """Release the memory of an array.

    What others have of it, such as an array of NumPy's that shows it, stays valid.
    """
    entry = BUDGETS.charges.get(("jax", id(array)))
    if entry is not None:
        entry.drop()
    array.delete()


def refuse_after_disposal() -> None:
    """Let the methods of JAX arrays that this library released raise `DisposedError`."""
    for name in (_CHECK, *_UNCHECKED):
        PATCHES.replace(JAX_METHODS, ARRAY, name, partial(_refusing, name=name))
    PATCHES.replace(JAX_METHODS, ARRAY, "__array__", _showing_memory)
    PATCHES.replace(JAX_METHODS, ARRAY, "__dlpack__", _lending)
    for name in ("__repr__", "__str__"):
        PATCHES.replace(JAX_METHODS, ARRAY, name, _showing)


def _refusing(method: Any, name: str) -> Any:
    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        if self.is_deleted():
            if dead_entry_of(self) is not None:
                kind = kind_of(self)
                assert kind is not None
                raise disposed_error(self, kind)
            if name != _CHECK:
                # The program itself deleted the array; JAX's own error is raised.
                self._check_if_deleted()
        return method(self, *args, **options)

    return refusing


def _showing(method: Any) -> Any:
    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def showing(self: Any) -> Any:
        if self.is_deleted() and dead_entry_of(self) is not None:
            return f"<disposed jax.Array {tuple(self.shape)} {self.dtype}>"
        return method(self)

    return showing


def _showing_memory(method: Any) -> Any:
    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    @recording
    def showing_memory(self: Any, *args: Any, **options: Any) -> Any:
        shown = method(self, *args, **options)
        if BIRTHS.record is not None:
            # It keeps the memory, also when the array has gone.
            BUFFERS.record(shown)
        return shown

    return showing_memory


def _lending(method: Any) -> Any:
    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def lending(self: Any, *args: Any, **options: Any) -> Any:
        # What is there now is known before JAX makes another array around the same memory.
        look()
        capsule = method(self, *args, **options)
        pass_over_aliases(self)
        return capsule

    return lending
