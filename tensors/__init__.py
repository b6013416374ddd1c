"""Tensors: the handles that scopes own. This floor teaches the scopes NumPy."""

# Each of these registers itself when it is imported.
from .jax import install as jax_install  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .numpy import storage as numpy_storage  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .tensor import arena_service as tensor_arena_service  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
from .torch import install as torch_install  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for its effect
