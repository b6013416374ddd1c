"""Losses with their graphs are kept in a variable of main(), which is gone before any report.

kind: growth, graph
holder: main(): local 'losses'
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        out = model(torch.ones(32, 64))
        batch_losses = out.square().expand(32, 64).clone()  # LEAK
        optimizer.zero_grad()
        batch_losses.mean().backward()
        optimizer.step()
        losses.append(batch_losses)
    return len(losses)


main()
