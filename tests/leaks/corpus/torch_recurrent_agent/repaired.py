"""It acts without a graph, and keeps numbers."""

import torch
from torch import nn

torch.manual_seed(0)


class Agent:
    def __init__(self):
        self.net = nn.LSTMCell(32, 64)
        self.state = torch.zeros(1, 64), torch.zeros(1, 64)
        self.values = []

    @torch.no_grad()
    def act(self, observation):
        self.state = self.net(observation, self.state)
        self.values.append(self.state[0].sum().item())
        return self.state[0].argmax().item()


agent = Agent()
for episode in range(4):
    for step in range(50):
        agent.act(torch.randn(1, 32))
print(len(agent.values))
