"""Classes of other libraries that hold arrays or state, by name. Nothing is imported for them.

Their instances are walked: see `scopes/tree_walk.py`. Types that a library has registered as
pytrees need no line here. `KEEPERS_OF` has the classes that keep tensors from one step to the next
on purpose; each of them has a program in `tests/frameworks` that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from ..scopes.base.process import await_module
from ..scopes.base.sites import Role, add_library
from ..scopes.tree_walk import add_keepers, walk_as_models, walk_attributes_of, walk_pytrees_with, walk_with
from .numpy.storage import Address

__all__ = [
    "KEEPERS_OF",
]

# Libraries whose callers' lines are birth sites: what a program calls to make or change arrays and
# models. Of a trainer the lines of its own tell more than the one line that starts it.
add_library(
    *("einops", "imageio", "joblib", "pandas", "PIL", "pyarrow", "safetensors", "scipy", "skimage", "sklearn"),
    *("tokenizers", "xarray"),
    module=__name__,
)
add_library(
    *("diffusers", "equinox", "flax", "optax", "timm", "torchaudio", "torchmetrics", "torchvision", "transformers"),
    module=__name__,
    role=Role.LAYERS,
)

# PyTorch's modules and optimizers, and the classes of `KEEPERS_OF`, are walked as models too.
walk_as_models(
    "torch.amp.grad_scaler.GradScaler",
    "torch.optim.lr_scheduler.LRScheduler",
)
walk_attributes_of(
    "pandas",
    "scipy.sparse",
    "torch.distributions",
    "torch_geometric.data",
    "transformers.cache_utils.Cache",
    "transformers.cache_utils.CacheLayerMixin",
)

# Containers of PyArrow may hold the memory of NumPy arrays. They do not refer to the array, and
# only tell the addresses of their buffers.


def _children_in_arrow(node: Any) -> Iterator[tuple[str, object]]:
    arrow: Any = sys.modules["pyarrow.lib"]
    if isinstance(node, (arrow.Table, arrow.RecordBatch)):
        return ((f".column({index})", column) for index, column in enumerate(node.columns))
    if isinstance(node, arrow.ChunkedArray):
        return ((f".chunk({index})", chunk) for index, chunk in enumerate(node.chunks))
    if isinstance(node, arrow.Buffer):
        return iter([(".address", Address(node.address))] if node.size and node.is_cpu else [])
    if isinstance(node, arrow.DictionaryArray):
        return iter([(".indices", node.indices), (".dictionary", node.dictionary)])
    if isinstance(node, arrow.Array):
        # This includes the buffers of its children.
        return ((f".buffers()[{index}]", buffer) for index, buffer in enumerate(arrow.Array.buffers(node)))
    return iter(())


walk_with(_children_in_arrow, "pyarrow.lib")

KEEPERS_OF: Final[dict[str, tuple[str, ...]]] = {
    # Metrics of torchmetrics, and values that Lightning logs, are PyTorch modules: no line needed.
    "accelerate": ("accelerate.tracking.GeneralTracker",),
    "diffusers": ("diffusers.schedulers.scheduling_utils.SchedulerMixin",),
    "flax": ("flax.nnx.pytreelib.Pytree",),
    "torch_geometric": (
        "torch_geometric.data.in_memory_dataset.InMemoryDataset",
        "torch_geometric.edge_index.EdgeIndex",
    ),
    "transformers": ("transformers.cache_utils.Cache",),
}
"""For each library the full names of classes; subclasses count too: see `disposescope.keeps`."""

for library, names in KEEPERS_OF.items():
    # Once the library is imported: `CLASSES.any_keeps` makes the end of every scope slower.
    await_module(library, partial(add_keepers, *names))

# The children of objects whose types are registered as pytrees with PyTorch, JAX or optree.
#
# Each of these libraries has a registry of types and of functions that return the children of an
# instance. Only registries of libraries that the program has imported are used. The functions are
# the program's code, registered for this purpose; the walk runs no other code of the objects that
# it meets.


Flattened = tuple[Iterable[object], object]
"""The children of an object, and the other data that is needed to build it again."""


def _flattened_by_torch(pytree: Any, node: object) -> Flattened | None:
    entry = pytree.SUPPORTED_NODES.get(type(node))
    return None if entry is None else entry.flatten_fn(node)[:2]


def _flattened_by_jax(tree_util: Any, node: object) -> Flattened | None:
    flattened: Flattened | None = tree_util.default_registry.flatten_one_level(node)
    return flattened


def _flattened_by_optree(registry: Any, node: object) -> Flattened | None:
    cls = type(node)
    entries: dict[Any, Any] = registry._NODETYPE_REGISTRY
    entry = entries.get(cls)
    if entry is None:
        # For a type that is registered in a namespace, the key is a pair.
        entry = next((entry for entry in list(entries.values()) if entry.type is cls), None)
    return None if entry is None else entry.flatten_func(node)[:2]


# By library: the module of its registry, the attribute that the module must have, and a function
# that looks an object up.
_REGISTRIES: Final[tuple[tuple[str, str, Callable[[Any, object], Flattened | None]], ...]] = (
    ("torch.utils._pytree", "SUPPORTED_NODES", _flattened_by_torch),
    ("jax.tree_util", "default_registry", _flattened_by_jax),
    ("optree.registry", "_NODETYPE_REGISTRY", _flattened_by_optree),
)


def _pytree_children(node: object) -> Iterator[tuple[str, object]] | None:
    """Return what an object holds, from the registry that has its type; None if none has.

    That includes the other data that is needed to build the object again.
    """
    for name, attribute, flatten in _REGISTRIES:
        module = sys.modules.get(name)
        # The attribute is missing while another thread imports the module.
        if module is not None and hasattr(module, attribute):
            flattened = flatten(module, node)
            if flattened is not None:
                return _labelled(*flattened)
    return None


def _labelled(children: Iterable[object], static: object) -> Iterator[tuple[str, object]]:
    for index, child in enumerate(children):
        yield f".<child {index}>", child
    yield ".<static data>", static


walk_pytrees_with(_pytree_children)
