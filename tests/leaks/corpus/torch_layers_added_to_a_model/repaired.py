"""A builder adds the layers once, one after another; each batch replaces the head and one layer."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.head = nn.Linear(64, 64)
        self.layers = nn.ModuleList()

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build():
    model = Net()
    for _ in range(30):
        model.layers.append(nn.Linear(64, 64))
    return model


torch.manual_seed(0)
model = build()
with torch.no_grad():
    for step in range(30):
        model.head = nn.Linear(64, 64)
        model.layers[step] = nn.Linear(64, 64)
        model(torch.randn(8, 64)).square().mean()
other = build()
