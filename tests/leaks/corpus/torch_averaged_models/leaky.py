"""Each epoch begins a new average of the model's weights and keeps the old ones.

kind: model
holder: averages
"""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
averages = []
for epoch in range(20):
    averages.append(AveragedModel(model))  # LEAK
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        averages[-1].update_parameters(model)
