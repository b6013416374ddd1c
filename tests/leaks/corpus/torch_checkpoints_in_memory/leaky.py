"""Checkpoints are written to memory, which no tensor has, every second step, and all are kept.

kind: native
holder: nor free lists of the C library do
"""

import io

import torch


class Trainer:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(100, 400), torch.nn.ReLU(), torch.nn.Linear(400, 100))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.checkpoints = {}

    def step(self, number):
        rows = torch.randn(16, 100)
        self.optimizer.zero_grad()
        (self.model(rows) - rows).square().mean().backward()
        self.optimizer.step()
        if number % 2 == 0:
            file = io.BytesIO()
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
            self.checkpoints[number] = file


trainer = Trainer()
for number in range(160):
    trainer.step(number)
