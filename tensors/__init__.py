"""Tensors: the handles that scopes own. This floor teaches the scopes NumPy."""

# Each of these registers itself when it is imported.
from .jax import install as jax_install  # noqa: F401  # pyright: ignore[reportUnusedImport]
from .numpy import storage as numpy_storage  # noqa: F401  # pyright: ignore[reportUnusedImport]
from .numpy.statistics import ArenaStatistics, arena_statistics, empty_cache
from .tensor import arena_service as tensor_arena_service  # noqa: F401  # pyright: ignore[reportUnusedImport]
from .tensor import watching as tensor_watching  # noqa: F401  # pyright: ignore[reportUnusedImport]
from .tensor.constructors import arange, asarray, empty, from_dlpack, full, ones, tensor, zeros
from .tensor.tensor import ExportedStorage, Tensor, exported_storages
from .torch import install as torch_install  # noqa: F401  # pyright: ignore[reportUnusedImport]
from .torch.graph import GraphOp, GraphSummary, graph_nbytes, graph_summary

__all__ = [
    "ArenaStatistics",
    "ExportedStorage",
    "GraphOp",
    "GraphSummary",
    "Tensor",
    "arange",
    "arena_statistics",
    "asarray",
    "empty",
    "empty_cache",
    "exported_storages",
    "from_dlpack",
    "full",
    "graph_nbytes",
    "graph_summary",
    "ones",
    "tensor",
    "zeros",
]
