"""Release JAX arrays, and raise `DisposedError` for their later use.

``Array.delete()`` frees the memory, and JAX itself raises an error for a deleted array, except in
``is_ready()``, which reads through a null pointer (jaxlib 0.10.2). The methods are patched to raise
`DisposedError` for arrays that this library deleted.
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
"""The method by which JAX's own methods check that an array was not deleted."""
# These methods of JAX use the memory without that check.
_UNCHECKED: Final = (
    "block_until_ready",
    "copy_to_host_async",
    "is_ready",
    "on_device_size_in_bytes",
    "unsafe_buffer_pointer",
)


def release(array: Any) -> None:
    """Delete an array. A NumPy array that shares its memory stays valid."""
    entry = BUDGETS.charges.get(("jax", id(array)))
    if entry is not None:
        entry.drop()
    array.delete()


def refuse_after_disposal() -> None:
    """Patch methods of JAX arrays to raise `DisposedError` for arrays that this library deleted."""
    for name in (_CHECK, *_UNCHECKED):
        PATCHES.replace(JAX_METHODS, ARRAY, name, partial(_refusing, name=name))
    PATCHES.replace(JAX_METHODS, ARRAY, "__array__", _showing_memory)
    PATCHES.replace(JAX_METHODS, ARRAY, "__dlpack__", _lending)
    for name in ("__repr__", "__str__"):
        PATCHES.replace(JAX_METHODS, ARRAY, name, _showing)


def _refusing(method: Any, name: str) -> Any:
    """Wrap a method to raise `DisposedError` for a disposed array."""

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
    """Wrap ``__repr__`` or ``__str__`` to describe a disposed array."""

    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def showing(self: Any) -> Any:
        if self.is_deleted() and dead_entry_of(self) is not None:
            return f"<disposed jax.Array {tuple(self.shape)} {self.dtype}>"
        return method(self)

    return showing


def _showing_memory(method: Any) -> Any:
    """Wrap ``__array__`` to record its result for a detector."""

    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    @recording
    def showing_memory(self: Any, *args: Any, **options: Any) -> Any:
        shown = method(self, *args, **options)
        if BIRTHS.record is not None:
            # The NumPy array keeps the memory alive after the JAX array is gone.
            BUFFERS.record(shown)
        return shown

    return showing_memory


def _lending(method: Any) -> Any:
    """Wrap ``__dlpack__`` so that no scope owns the array that JAX makes for it."""

    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def lending(self: Any, *args: Any, **options: Any) -> Any:
        # Records all arrays that are there now, so that only the array that JAX makes around the
        # same memory is unknown afterwards.
        look()
        capsule = method(self, *args, **options)
        pass_over_aliases(self)
        return capsule

    return lending
