"""The arrays of outputs are collected, and keep the memory of tensors that the scope disposed.

kind: escaped, growth
holder: module __main__.rows
"""

import torch

import disposescope as ds

rows = []

for step in range(60):
    with ds.dispose_scope("step"):
        output = torch.full((2000,), float(step))  # LEAK
        rows.append(output.numpy())
