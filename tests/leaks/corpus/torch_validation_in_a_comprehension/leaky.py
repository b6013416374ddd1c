"""Validation records graphs, and the mean of each epoch keeps those of all its batches.

kind: graph
holder: history
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
batches = [(torch.randn(256, 64), torch.randn(256, 1)) for _ in range(10)]
history = []
for _ in range(6):
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses = [nn.functional.mse_loss(model(x), y) for x, y in batches]  # LEAK
    history.append(torch.stack(losses).mean())
