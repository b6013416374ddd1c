"""A module keeps every attention map that it has ever made, for a picture.

kind: growth, graph
holder: .maps
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.maps = []

    def forward(self, x):
        weights = torch.softmax(x @ x.T, dim=-1)  # LEAK
        self.maps.append(weights)
        return weights @ x


attention = Attention()

for step in range(60):
    with torch.no_grad():
        attention(torch.randn(32, 64))
        optimizer.step()
