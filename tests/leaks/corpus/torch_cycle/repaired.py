"""The callback refers to the trainer weakly."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import gc
import weakref

gc.disable()


class Callback:
    def __init__(self, trainer):
        self.trainer = weakref.ref(trainer)


class Trainer:
    def __init__(self):
        self.batch = torch.randn(256, 64)
        self.callback = Callback(self)


for step in range(60):
    Trainer()
