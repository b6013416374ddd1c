"""All events are joined to one array, which nobody bounds.

kind: growth
holder: main(): local 'store'.events
"""

import numpy as np


class EventStore:
    def __init__(self, width):
        self.events = np.zeros((0, width))

    def add(self, rows):
        self.events = np.concatenate([self.events, rows])  # LEAK

    def recent(self, count=256):
        return self.events[-count:]


def main():
    rng = np.random.default_rng(0)
    store = EventStore(32)
    rate = 0.0
    for _ in range(250):
        rows = rng.exponential(size=(100, 32))
        store.add(rows[rows[:, 0] > 0.1])
        rate = 0.9 * rate + 0.1 / store.recent().mean()
    return rate


main()
