"""Each task replaces the head; the optimizer keeps the old ones' parameters and its state of them.

kind: growth
holder: module __main__.optimizer
"""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Linear(64, 64)
optimizer = torch.optim.Adam(body.parameters())
for task in range(30):
    head = nn.Linear(64, 64)
    optimizer.add_param_group({"params": list(head.parameters())})
    for _ in range(2):
        optimizer.zero_grad()
        head(body(torch.randn(8, 64))).square().mean().backward()
        optimizer.step()  # LEAK
