"""Tensors: the handles that scopes own. This floor teaches the scopes NumPy."""

from . import _object_arrays as _object_arrays
from ._constructors import arange, empty, full, ones, tensor, zeros
from ._exchange import asarray, from_dlpack
from ._tensor import Tensor

__all__ = ["Tensor", "arange", "asarray", "empty", "from_dlpack", "full", "ones", "tensor", "zeros"]
