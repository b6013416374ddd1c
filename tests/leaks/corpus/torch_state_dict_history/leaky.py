"""A search for the learning rate copies the weights each step, to go back to the best.

kind: growth
holder: module __main__.checkpoints
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import copy

checkpoints = []

for step in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()

    checkpoints.append(copy.deepcopy(model.state_dict()))  # LEAK
del loss
