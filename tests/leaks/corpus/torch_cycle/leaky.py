"""A trainer and its callback refer to one another, and the collector is off.

kind: cycle
holder: cycle
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import gc

gc.disable()


class Callback:
    def __init__(self, trainer):
        self.trainer = trainer


class Trainer:
    def __init__(self):
        self.batch = torch.randn(256, 64)  # LEAK
        self.callback = Callback(self)


for step in range(60):
    Trainer()
