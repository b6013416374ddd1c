"""An evaluation without no_grad collects predictions, and each carries its graph.

kind: graph, growth
holder: module __main__.predictions
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
predictions = []
model.eval()

for step in range(60):
    predictions.append(model(torch.randn(32, 64)))  # LEAK
    if step % 10 == 9:
        optimizer.step()
