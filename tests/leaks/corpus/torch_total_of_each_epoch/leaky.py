"""A running total of the loss on other data: each epoch frees its graphs, the next keeps its own.

kind: graph
holder: train_epoch(): local 'total'
"""

import torch
from torch import nn


def train_epoch(model, optimizer):
    total = 0
    for _ in range(40):
        loss = model(torch.randn(64, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + model(torch.randn(64, 32)).square().mean()  # LEAK
    return float(total.detach()) / 40


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        train_epoch(model, optimizer)
    print("trained")


main()
