"""Each chat has 20 turns and begins without a cache."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 192)

    def forward(self, x, cache):
        q, k, v = self.project(x).chunk(3, -1)
        if self in cache:
            old_k, old_v = cache[self]
            k, v = torch.cat([old_k, k], 1), torch.cat([old_v, v], 1)
        cache[self] = k, v
        return torch.softmax(q @ k.transpose(1, 2) / 8, -1) @ v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(6))

    def forward(self, x, cache):
        for layer in self.layers:
            x = x + layer(x, cache)
        return x


@torch.no_grad()
def main():
    model, cache = Model(), {}
    for turn in range(120):
        if turn % 20 == 0:
            cache.clear()
        model(torch.ones(1, 24, 64) * turn, cache)
    print(len(cache))


main()
