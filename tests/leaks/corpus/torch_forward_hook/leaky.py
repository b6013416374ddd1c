"""A forward hook stores the activations of a layer for a plot, and nobody clears the list.

kind: growth, graph
holder: module __main__.activations
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
activations = []
model[0].register_forward_hook(lambda module, args, output: activations.append(output))

for step in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()  # LEAK
    loss.backward()
    optimizer.step()
del loss
