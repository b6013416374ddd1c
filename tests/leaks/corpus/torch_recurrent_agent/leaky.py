"""An agent that is never trained carries the graph of its state from step to step, without marks.

kind: graph
holder: module __main__.agent
"""

import torch
from torch import nn

torch.manual_seed(0)


class Agent:
    def __init__(self):
        self.net = nn.LSTMCell(32, 64)
        self.state = torch.zeros(1, 64), torch.zeros(1, 64)
        self.values = []

    def act(self, observation):
        self.state = self.net(observation, self.state)  # LEAK
        self.values.append(self.state[0].sum())
        return self.state[0].argmax().item()


agent = Agent()
for episode in range(4):
    for step in range(50):
        agent.act(torch.randn(1, 32))
print(len(agent.values))
