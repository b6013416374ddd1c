"""A model makes a prompt for every task, and no task ever ends.

kind: growth
holder: .prompts
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.prompts = nn.ParameterList()

    def forward(self, x):
        self.prompts.append(nn.Parameter(torch.zeros(64, 64)))  # LEAK
        return self.first(x) @ self.prompts[-1]


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
