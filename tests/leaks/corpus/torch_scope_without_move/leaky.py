"""The scope of a step disposes what the metrics still hold.

kind: escaped
holder: module __main__.metrics
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import disposescope as ds

metrics = {"loss": []}

for step in range(60):
    with ds.dispose_scope("step"):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64)).square().mean()  # LEAK
        loss.backward()
        optimizer.step()
        metrics["loss"].append(loss)
