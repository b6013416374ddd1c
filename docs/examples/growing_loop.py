"""Trains a network for 100 steps, and keeps the losses for a plot."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
validation = torch.randn(256, 512)
losses = []

for _ in range(100):
    batch = torch.randn(256, 512)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(model(validation).square().mean())

print(f"{len(losses)} steps")
