"""The handle is removed with the head."""

import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU())


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(64, 64)
        self.seen = 0
        self.handle = backbone[0].register_forward_hook(self.watch)

    def watch(self, module, inputs, output):
        self.seen += 1

    def forward(self, x):
        return self.score(backbone(x))


def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def evaluate():
    for _ in range(24):
        head = Head()
        train(head)
        head.handle.remove()


evaluate()
