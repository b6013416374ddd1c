"""The history of losses keeps their graphs, because backward is called on another loss.

kind: graph, growth
holder: module __main__.history
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []

for step in range(60):
    optimizer.zero_grad()
    outputs = model(torch.randn(32, 64))  # LEAK
    penalty = outputs.abs().mean()
    history.append(penalty)
    (model(torch.randn(32, 64)).square().mean()).backward()
    optimizer.step()
del outputs, penalty
