"""The hook is removed after the backward."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
watched = []


def train():
    batch = torch.randn(32, 64)
    scale = torch.ones(1, requires_grad=True)
    handle = scale.register_hook(lambda gradient: gradient * batch.mean())
    (model(batch).mean() * scale).sum().backward()
    handle.remove()
    watched.append(scale.item())
    optimizer.step()


for step in range(60):
    train()
