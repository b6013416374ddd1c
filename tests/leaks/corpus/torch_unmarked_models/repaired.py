"""It keeps the best one. Members of an ensemble are made first, and used then."""

import torch
from torch import nn

ensemble = []
for seed in range(20):
    torch.manual_seed(seed)
    ensemble.append(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))

data = torch.ones(8, 64)
with torch.no_grad():
    scores = [float(member(data).std()) for _ in range(10) for member in ensemble]

best, score = None, 0.0
for seed in range(30):
    torch.manual_seed(seed)
    model = nn.Linear(64, 10)
    if float(model.weight.detach().std()) > score:
        best, score = model, float(model.weight.detach().std())
