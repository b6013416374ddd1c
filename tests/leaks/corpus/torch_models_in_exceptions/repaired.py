"""It keeps what they say."""

import torch
from torch import nn

torch.manual_seed(0)
errors = []


def trial(width):
    model = nn.Linear(64, width)
    for _ in range(3):
        model(torch.randn(8, 64)).square().mean().backward()
    raise ValueError(f"{width} is too wide")


for width in range(100, 120):
    try:
        trial(width)
    except ValueError as error:
        errors.append(str(error))
