"""A service keeps its last answers, after a training with steps, and a table of the training."""

import torch
from torch import nn

ANSWERS = {}
NET = nn.Linear(32, 200)


def train():
    optimizer = torch.optim.SGD(NET.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        NET(torch.ones(10, 32)).square().mean().backward()
        optimizer.step()


@torch.no_grad()
def handle(number):
    answer = NET(torch.full((10, 32), float(number)))
    ANSWERS[number % 50] = answer
    return answer.argmax()


train()
for request in range(400):
    handle(request)
