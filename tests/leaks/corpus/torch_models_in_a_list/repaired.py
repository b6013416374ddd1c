"""It keeps the best one. An ensemble that is made once and used is there by right."""

import torch
from torch import nn

torch.manual_seed(0)
best = None
ensemble = [nn.Linear(64, 64) for _ in range(10)]


def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def search():
    global best
    least = float("inf")
    for _ in range(30):
        model = nn.Linear(64, 64)
        train(model)
        loss = model(torch.ones(8, 64)).square().mean().item()
        if loss < least:
            least, best = loss, model


search()
for model in ensemble:
    train(model)
