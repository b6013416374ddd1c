"""Tensors: the handles that scopes own. This floor teaches the scopes NumPy."""

from . import _arena_service as _arena_service
from . import _arena_sightings as _arena_sightings
from . import _array_edges as _array_edges
from . import _jax_arrival as _jax_arrival
from . import _object_arrays as _object_arrays
from . import _torch_arrival as _torch_arrival
from ._arena_statistics import ArenaStatistics, arena_statistics
from ._cache import empty_cache
from ._constructors import arange, empty, full, ones, tensor, zeros
from ._exchange import asarray, from_dlpack
from ._exports import ExportedStorage, exported_storages
from ._graph import GraphOp, GraphSummary, graph_nbytes, graph_summary
from ._tensor import Tensor

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
