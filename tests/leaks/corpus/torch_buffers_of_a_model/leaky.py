"""A model registers what it has seen as one more buffer with every batch.

kind: growth
holder: module __main__.model.seen
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.count = 0

    def forward(self, x):
        x = torch.relu(self.first(x))  # LEAK
        self.register_buffer(f"seen{self.count}", x.detach(), persistent=False)
        self.count += 1
        return x


torch.manual_seed(0)
model = Net()
for _ in range(60):
    model(torch.randn(32, 64)).square().mean().item()
