"""The penalty is used and dropped."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
penalties = []

for step in range(60):
    x = torch.randn(32, 64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = gradient.norm()
    penalty.backward()
    penalties.append(penalty.item())
    optimizer.step()
    optimizer.zero_grad()
del x, gradient, penalty
