"""Tensors: `ds.Tensor`, the arena, and an adapter for each library of tensors.

Read `arena`, `numpy` and `tensor` first; `torch` and `jax` do not depend on each other.
"""

# Each of these modules registers a framework, or the arena, when it is imported.
from . import libraries as named_libraries  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from . import torch as torch_room  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .jax import install as jax_install  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .numpy import storage as numpy_storage  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .tensor import arena_service as tensor_arena_service  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .tensor import buffers as tensor_buffers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .tensor import framework as tensor_framework  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
