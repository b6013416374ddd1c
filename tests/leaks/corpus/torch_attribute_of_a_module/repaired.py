"""It keeps the last one."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = None

    def forward(self, x):
        weights = torch.softmax(x @ x.T, dim=-1)
        self.map = weights.detach()
        return weights @ x


attention = Attention()

for step in range(60):
    with torch.no_grad():
        attention(torch.randn(32, 64))
        optimizer.step()
