"""A filter keeps every state that it has been in.

kind: growth
holder: module __main__.tracker.states
"""

import torch


class Tracker:
    def __init__(self):
        self.states = []
        self.state = torch.zeros(500)

    def update(self, value):
        self.state = self.state * 0.9 + value  # LEAK
        self.states.append(self.state)


tracker = Tracker()
for step in range(150):
    tracker.update(float(step))
