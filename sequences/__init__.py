"""Sequences: composites of tensors, and the batches made of them.

Read `packed`, `array_adapter` and `rows` first, then `pack`, `pad`, `collate` and `batches`. The
functions are written once, over NumPy arrays or PyTorch's tensors, whose shape and dtype are asked
alike: what differs is a method of `ArrayAdapter`, which `TorchAdapter` overrides. Where rows are is
worked out in NumPy, and `compiled` moves them for both.

PyTorch's tensors are moved so where they are contiguous memory of the CPU, no graph is wanted and
nobody follows operations. Whatever else is given goes to ``torch.nn.utils.rnn``.
"""

from . import framework as framework  # registers itself for PyTorch
