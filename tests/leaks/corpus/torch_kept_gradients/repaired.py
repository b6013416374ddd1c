"""Their norms are kept."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
norms = []
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    norms.append([parameter.grad.norm().item() for parameter in model.parameters()])
    optimizer.step()
