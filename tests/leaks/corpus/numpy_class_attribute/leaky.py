"""A list that was meant for each instance is one of the class.

kind: growth
holder: Tracker.positions
"""

import numpy as np

import disposescope as ds


class Tracker:
    positions = []

    def update(self, position):
        self.positions.append(position)


for step in range(60):
    tracker = Tracker()
    tracker.update(np.full(2000, step))  # LEAK
    with ds.dispose_scope("step"):
        np.ones(100).sum()
