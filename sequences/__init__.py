"""Sequences: composites of tensors, and the batches made of them.

Read `packed` first, then `pack`, `pad`, `collate` and `batches`; `torch_adapter` does the same for
PyTorch's tensors, and `compiled` moves rows of memory for all of them.
"""

from . import framework as framework  # registers itself for PyTorch
