"""The gradients of each step are kept for a plot of their norms.

kind: growth
holder: module __main__.gradients
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gradients = []
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()  # LEAK
    gradients.append([parameter.grad for parameter in model.parameters()])
    optimizer.step()
