"""It keeps the last four, and what every layer computes once."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(20)])
        self.count = 0

    def forward(self, x):
        for layer in self.layers:
            if not hasattr(layer, "mask"):
                layer.register_buffer("mask", torch.ones(64, 64).tril(), persistent=False)
            x = torch.relu(layer(x) @ layer.mask)
        self.register_buffer(f"seen{self.count % 4}", x.detach(), persistent=False)
        self.count += 1
        return x


torch.manual_seed(0)
model = Net()
for _ in range(60):
    for name in [name for name in model._buffers if name.startswith("seen")][:-3]:
        delattr(model, name)
    model(torch.randn(32, 64)).square().mean().item()
