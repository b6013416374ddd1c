"""A list keeps gradient penalties, each with the graph of the gradient, which create_graph makes.

kind: graph, growth, cycle
holder: penalties
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
penalties = []

for step in range(60):
    x = torch.randn(32, 64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)  # LEAK
    penalties.append(gradient.norm())
    optimizer.step()
del x, gradient
