"""Each epoch's running total is a tensor: the graphs of all steps go with it when main() returns.

kind: graph
holder: main(): local
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    means = []
    for _ in range(3):
        total = 0
        for _ in range(40):
            loss = model(torch.randn(64, 32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss
        means.append(total / 40)  # LEAK
    print(len(means))


main()
