"""It is made under no_grad, and reduced."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
predictions = []
model.eval()

for step in range(60):
    with torch.no_grad():
        predictions.append(float(model(torch.randn(32, 64)).mean()))
    if step % 10 == 9:
        optimizer.step()
