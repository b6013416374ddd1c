"""Releasing arrays of JAX, and the error of those who use one afterwards.

``Array.delete()`` gives the memory back, and JAX itself refuses an array that was deleted, on every
path but one: ``is_ready()`` reads through a null pointer (jaxlib 0.10.2). Where this library
deleted it, the error is `DisposedError`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from ...scopes.identity import dead_entry_of, disposed_error
from ...scopes.kinds import kind_of
from ..arena.budgets import CHARGES
from .births import ARRAY, look, pass_over_aliases

__all__ = [
    "refuse_after_disposal",
    "release",
]

_CHECK: Final = "_check_if_deleted"
# These go to the memory without that check.
_UNCHECKED: Final = (
    "block_until_ready",
    "copy_to_host_async",
    "is_ready",
    "on_device_size_in_bytes",
    "unsafe_buffer_pointer",
)


def release(array: Any) -> None:
    """Give the memory back.

    What others have of it, such as an array of NumPy's that shows it, stays valid.
    """
    entry = CHARGES.get(("jax", id(array))) if CHARGES else None
    if entry is not None:
        entry.drop()
    array.delete()


def refuse_after_disposal() -> None:
    """Let the methods of JAX's arrays raise `DisposedError` where this library has released one."""
    # Where a version of JAX has one of them no more, its own error is what is raised.
    methods: Any = ARRAY.__dict__
    for name in (_CHECK, *_UNCHECKED):
        method = methods.get(name)
        if method is not None:
            setattr(ARRAY, name, _refusing(method, name))
    ARRAY.__dlpack__ = _lending(ARRAY.__dlpack__)
    for name in ("__repr__", "__str__"):
        setattr(ARRAY, name, _showing(getattr(ARRAY, name)))


def _refusing(method: Any, name: str) -> Any:
    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        if self.is_deleted():
            if dead_entry_of(self) is not None:
                kind = kind_of(self)
                assert kind is not None
                raise disposed_error(self, kind)
            if name != _CHECK:
                # The program deleted it itself: JAX's own error, and no read of what is not there.
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


def _lending(method: Any) -> Any:
    @wraps(method, assigned=("__name__", "__doc__"), updated=())
    def lending(self: Any, *args: Any, **options: Any) -> Any:
        # What is there now is known before JAX makes another array around the same memory.
        look()
        capsule = method(self, *args, **options)
        pass_over_aliases(self)
        return capsule

    return lending
