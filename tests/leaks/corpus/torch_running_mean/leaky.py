"""A running mean is updated without detach, and grows by some nodes of graph a step.

kind: graph, growth
holder: module __main__.mean
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mean = torch.zeros(64)

for step in range(60):
    optimizer.zero_grad()
    hidden = model[0](torch.randn(32, 64))
    mean = 0.9 * mean + 0.1 * hidden.mean(0)  # LEAK
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
del hidden
