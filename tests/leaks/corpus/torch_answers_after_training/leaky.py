"""A service keeps all answers. The training before it had steps, and the service has none.

kind: growth
holder: __main__.ANSWERS
"""

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
    answer = NET(torch.full((10, 32), float(number)))  # LEAK
    ANSWERS[number] = answer
    return answer.argmax()


train()
for request in range(400):
    handle(request)
