"""All runs' schedulers are kept for a plot: each holds an optimizer, and so a model's weights.

kind: model
holder: schedulers
"""

import torch
from torch import nn

torch.manual_seed(0)
schedulers = []


def fit(width):
    model = nn.Linear(64, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # LEAK
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    schedulers.append(scheduler)


for run in range(30):
    fit(64)
