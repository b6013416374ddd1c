"""``jax.Array`` as a kind of resource."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final

from ...scopes.kinds import Kind, name_of, qualified_name, when_watched
from ..arena.budgets import CHARGES, Charge
from .births import ARRAY, see_births
from .disposal import refuse_after_disposal, release

__all__ = [
    "KIND",
    "array_in_key",
    "install",
]


def _storages(array: Any) -> list[tuple[Hashable, int]]:
    return [] if array.is_deleted() else [(("jax", id(array)), array.nbytes)]


def _device(array: Any) -> str:
    # Not `array.devices()`, which refuses where another thread has deleted the array while somebody
    # counts.
    device = min(array.sharding.device_set, key=lambda device: device.id)
    # JAX says "gpu" for what others call by its maker's platform.
    platform = "cuda" if device.platform == "gpu" and "cuda" in device.client.platform_version else device.platform
    return f"{platform}:{device.id}"


def _describe(array: Any) -> str:
    return f"jax.Array {tuple(array.shape)} {array.dtype}"


def _layout(array: Any) -> tuple[tuple[int, ...], str, int] | None:
    return tuple(array.shape), str(array.dtype), array.nbytes


def _is_disposed(array: Any) -> bool:
    disposed: bool = array.is_deleted()
    return disposed


def _memory(array: Any) -> list[Charge]:
    entry = CHARGES.get(("jax", id(array))) if CHARGES else None
    return [] if entry is None else [entry]


KIND: Final = Kind(
    cls=ARRAY,
    name="jax.Array",
    release=release,
    storages=_storages,
    device=_device,
    describe=_describe,
    is_disposed=_is_disposed,
    layout=_layout,
    memory=_memory,
)
"""The kind of the arrays of JAX that have memory.

Tracers are none, and keys of random numbers hold one.
"""


def array_in_key(node: object) -> Iterator[tuple[str, object]] | None:
    """Return the array inside an array of random number keys, labelled; None for any other object."""
    # By name: the module of the class is another one in each version of JAX, and importing it is
    # not ours to do.
    cls = type(node)
    if name_of(cls) != "PRNGKeyArray" or not qualified_name(cls).startswith("jax."):
        return None
    return iter([(f".{name}", value) for name, value in vars(node).items()])


def _watch_arrays() -> None:
    from .watching import watch_arrays

    watch_arrays()


def install() -> None:
    """See births from now on."""
    refuse_after_disposal()
    see_births(KIND)
    when_watched(_watch_arrays)
