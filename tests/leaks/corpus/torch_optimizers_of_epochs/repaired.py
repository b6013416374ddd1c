"""The old optimizer goes when the new one comes."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
for epoch in range(30):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / (epoch + 1))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
