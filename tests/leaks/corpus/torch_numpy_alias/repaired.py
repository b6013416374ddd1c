"""A number of each is collected."""

import torch

import disposescope as ds

rows = []

for step in range(60):
    with ds.dispose_scope("step"):
        output = torch.full((2000,), float(step))
        rows.append(float(output.numpy().sum()))
