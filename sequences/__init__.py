"""Sequences: composites of tensors, and the batches made of them."""

from . import torch_inputs as torch_inputs  # registers itself for PyTorch
