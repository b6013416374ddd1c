"""Sequences: composites of tensors, and the batches made of them.

Read `packed`, `array_adapter` and `rows` first, then `pack`, `pad`, `collate` and `batches`. Each
function is written once, for NumPy arrays and PyTorch's tensors, which both have ``shape`` and
``dtype``. What differs is a method of `ArrayAdapter`, which `TorchAdapter` overrides. For both,
NumPy computes the places of rows, and `compiled` copies the rows.

This is done for PyTorch's tensors only if they are contiguous CPU memory, no graph is to be
recorded and nothing but scopes follows operations. Else ``torch.nn.utils.rnn`` is called.
"""

from . import framework as framework  # registers itself for PyTorch
