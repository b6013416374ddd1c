"""A variable of main() keeps losses: backward() freed what the graphs saved, but nodes stay.

kind: growth
holder: main(): local 'losses'
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        loss = model(torch.randn(32, 64)).square().mean()  # LEAK
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return torch.stack(losses).mean().item()


main()
