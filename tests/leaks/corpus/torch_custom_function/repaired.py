"""The output is kept without its history."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.extra = torch.ones(500, 64)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


kept = []

for step in range(60):
    x = torch.ones(4, requires_grad=True)
    kept.append(Scale.apply(x).sum().item())
    optimizer.step()
