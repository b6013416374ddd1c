"""``jax.Array`` as a kind of resource."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final, final

from ...scopes.kinds import Kind, Layout, name_of, qualified_name
from ..arena.budgets import BUDGETS, Charge
from .births import ARRAY, see_births
from .disposal import refuse_after_disposal, release

__all__ = [
    "KIND",
    "array_in_key",
    "install",
]


@final
class JaxKind(Kind):
    """The kind of JAX arrays that have memory.

    Tracers have no memory. An array of random number keys holds such an array.
    """

    cls = ARRAY
    name = "jax.Array"

    def release(self, resource: Any, /) -> None:
        """Delete the array, and stop counting its bytes."""
        release(resource)

    def storages(self, resource: Any, /) -> list[tuple[Hashable, int]]:
        """Return the array itself as its storage: no two JAX arrays share memory visibly."""
        return [] if resource.is_deleted() else [(("jax", id(resource)), resource.nbytes)]

    def device(self, resource: Any, /) -> str:
        """Return the first device of the array."""
        # `array.devices()` raises if another thread has deleted the array meanwhile.
        device = min(resource.sharding.device_set, key=lambda device: device.id)
        # JAX calls the platform "gpu", other libraries "cuda".
        platform = "cuda" if device.platform == "gpu" and "cuda" in device.client.platform_version else device.platform
        return f"{platform}:{device.id}"

    def describe(self, resource: Any, /) -> str:
        """Return shape and dtype, which JAX keeps of deleted arrays too."""
        return f"jax.Array {tuple(resource.shape)} {resource.dtype}"

    def is_disposed(self, resource: Any, /) -> bool:
        """Return whether the array was deleted, by any code."""
        disposed: bool = resource.is_deleted()
        return disposed

    def layout(self, resource: Any, /) -> Layout:
        """Return shape, dtype and bytes."""
        return tuple(resource.shape), str(resource.dtype), resource.nbytes

    def memory(self, resource: Any, /) -> list[Charge]:
        """Return the charge of the array, if it counts against budgets."""
        entry = BUDGETS.charges.get(("jax", id(resource)))
        return [] if entry is None else [entry]


KIND: Final = JaxKind()


def array_in_key(node: object) -> Iterator[tuple[str, object]] | None:
    """Return the array, labelled, inside an array of random number keys; None for other objects."""
    # By name, because the class is in different modules in different versions of JAX.
    cls = type(node)
    if name_of(cls) != "PRNGKeyArray" or not qualified_name(cls).startswith("jax."):
        return None
    return iter([(f".{name}", value) for name, value in vars(node).items()])


def install() -> None:
    """Patch JAX to record births, and to raise errors for disposed arrays."""
    refuse_after_disposal()
    see_births(KIND)
