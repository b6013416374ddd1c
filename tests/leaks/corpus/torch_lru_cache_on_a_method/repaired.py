"""The table is cached in the instance."""

import torch
from torch import nn

torch.manual_seed(0)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 64)
        self.tables = {}

    def table(self, length):
        return self.tables.setdefault(length, list(range(length)))

    def forward(self, x):
        return self.project(x) * len(self.table(x.shape[0]))


def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def search():
    for _ in range(25):
        model = Positions()
        train(model)


search()
