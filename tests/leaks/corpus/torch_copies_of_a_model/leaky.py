"""Each epoch keeps a deep copy of the model, in case that it was the best.

kind: model
holder: module __main__.copies
"""

import copy

import torch
from torch import nn

torch.manual_seed(0)
copies = []
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(20):
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    copies.append(copy.deepcopy(model))  # LEAK
