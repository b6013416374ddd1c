"""It keeps the last one, and a cache of constants that fills and stops."""

import torch


class Tracker:
    def __init__(self):
        self.constants = {}
        self.state = torch.zeros(500)

    def update(self, value):
        key = int(value) % 40
        if key not in self.constants:
            self.constants[key] = torch.full((500,), float(key))
        self.state = self.state * 0.9 + self.constants[key]


tracker = Tracker()
for step in range(150):
    tracker.update(float(step))
