"""Each step gives the trainer a finalizer that holds the batch until main() and the trainer end.

kind: growth
holder: module weakref.finalize._registry
"""

import weakref

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(64, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        batch = torch.randn(64, 64)  # LEAK
        weakref.finalize(self, torch.Tensor.mean, batch)
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    trainer = Trainer()
    for _ in range(100):
        last = trainer.step()
    print(last > 0)


main()
