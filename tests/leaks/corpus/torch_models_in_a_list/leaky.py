"""A search over seeds keeps every model that it has trained, for the best of them.

kind: model
holder: module __main__.models
"""

import torch
from torch import nn

torch.manual_seed(0)
models = []


def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def search():
    for _ in range(30):
        model = nn.Linear(64, 64)  # LEAK
        train(model)
        models.append(model)


search()
