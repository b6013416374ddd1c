"""The rates are kept."""

import torch
from torch import nn

torch.manual_seed(0)
rates = []


def fit(width):
    model = nn.Linear(64, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    rates.append(scheduler.get_last_lr())


for run in range(30):
    fit(64)
