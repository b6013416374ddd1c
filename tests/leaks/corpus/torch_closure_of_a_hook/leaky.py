"""A tensor hook closes over the batch, and the hooked tensor is kept.

kind: growth, graph
holder: module __main__.watched
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
watched = []


def train():
    batch = torch.randn(32, 64)  # LEAK
    scale = torch.ones(1, requires_grad=True)
    scale.register_hook(lambda gradient: gradient * batch.mean())
    watched.append(scale)
    (model(batch).mean() * scale).sum().backward()
    optimizer.step()


for step in range(60):
    train()
