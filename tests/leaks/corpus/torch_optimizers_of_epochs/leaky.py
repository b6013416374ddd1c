"""Each epoch begins with a new optimizer, and the old ones are kept with their state.

kind: growth
holder: optimizers
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizers = []
for epoch in range(30):
    optimizers.append(torch.optim.Adam(model.parameters(), lr=0.1 / (epoch + 1)))
    for _ in range(2):
        optimizers[-1].zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizers[-1].step()  # LEAK
