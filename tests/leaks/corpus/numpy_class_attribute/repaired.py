"""Each instance has its own list."""

import numpy as np

import disposescope as ds


class Tracker:
    def __init__(self):
        self.positions = []

    def update(self, position):
        self.positions.append(position)


for step in range(60):
    tracker = Tracker()
    tracker.update(np.full(2000, step))
    with ds.dispose_scope("step"):
        np.ones(100).sum()
