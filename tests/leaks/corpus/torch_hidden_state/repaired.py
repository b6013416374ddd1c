"""The state is detached between batches."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
cell = nn.GRUCell(64, 64)
hidden = torch.zeros(32, 64)

for step in range(60):
    hidden = cell(torch.randn(32, 64), hidden.detach())
    with torch.no_grad():
        score = hidden.mean()
    optimizer.step()
hidden = hidden.detach()
