"""A model is given another layer with every batch.

kind: growth
holder: module __main__.model.layers
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.layers = nn.ModuleList()

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


torch.manual_seed(0)
model = Net()
with torch.no_grad():
    for _ in range(30):
        model.layers.append(nn.Linear(64, 64))  # LEAK
        model(torch.randn(8, 64)).square().mean()
