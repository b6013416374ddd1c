"""A mixture adds an expert whenever the loss stalls, which is always.

kind: model
holder: module __main__.experts
"""

import torch
from torch import nn

torch.manual_seed(0)
experts = nn.ModuleList()


def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


for _ in range(20):
    experts.append(nn.Linear(64, 64))  # LEAK
    train(experts[-1])
