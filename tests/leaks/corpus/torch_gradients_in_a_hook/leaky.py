"""A hook of a parameter keeps the gradients that it is given, doubled.

kind: growth
holder: module __main__.seen
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = []


def watch(gradient):
    seen.append(gradient * 2)  # LEAK


model.weight.register_hook(watch)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
