"""The outputs of the last eight steps are kept."""

from collections import deque

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = deque(maxlen=8)
    for _ in range(60):
        kept.append(net(torch.randn(64, 64)))
        loss = net(torch.randn(64, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(kept)


main()
