"""They are moved out of a scope that detaches, and few."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
from collections import deque

import disposescope as ds

outputs = deque(maxlen=4)

for step in range(60):
    with ds.dispose_scope("step", graph="detach") as scope:
        output = model(torch.randn(32, 64))
        outputs.append(scope.move_to_outer(output.mean()))
