"""Small outputs of a network are kept, each with its graph, which is large.

kind: graph
holder: main(): local 'kept'
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = []
    for _ in range(60):
        kept.append(net(torch.randn(64, 64)))  # LEAK
        loss = net(torch.randn(64, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(kept)


main()
