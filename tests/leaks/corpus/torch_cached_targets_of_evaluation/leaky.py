"""Outputs of a teacher in eval mode are cached in the first epoch, each with its graph.

kind: graph
holder: distiller.targets
"""

import torch
from torch import nn


class Distiller:
    def __init__(self):
        self.teacher = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).eval()
        self.student = nn.Linear(64, 8)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.05)
        self.targets = {}

    def step(self, index, x):
        if index not in self.targets:
            self.targets[index] = self.teacher(x)  # LEAK
        loss = (self.student(x) - self.targets[index].detach()).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
data = [torch.randn(64, 64) for _ in range(30)]
distiller = Distiller()
for epoch in range(3):
    for index, x in enumerate(data):
        distiller.step(index, x)
