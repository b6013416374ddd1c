"""The outputs are moved out of the step, and carry its graph.

kind: graph, growth
holder: module __main__.outputs
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import disposescope as ds

outputs = []

for step in range(60):
    with ds.dispose_scope("step") as scope:
        output = model(torch.randn(32, 64))  # LEAK
        outputs.append(scope.move_to_outer(output.mean()))
