"""A dataset caches every item that it decodes.

kind: growth
holder: module __main__.dataset.cache
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 600

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = torch.full((64,), float(index))  # LEAK
        return self.cache[index]


dataset = Images()

for step in range(60):
    batch = torch.stack([dataset[step * 10 + row] for row in range(10)])
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
