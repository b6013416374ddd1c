"""They close over the number."""

import torch
from torch import nn

torch.manual_seed(0)
callbacks = []


def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def distil():
    student = nn.Linear(64, 64)
    train(student)
    norm = student.weight.norm().item()
    callbacks.append(lambda: norm)


for _ in range(20):
    distil()
