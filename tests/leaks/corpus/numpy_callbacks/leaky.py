"""Each step registers a callback whose closure holds the step's buffer.

kind: growth
holder: cell 'buffer'
"""

import numpy as np

import disposescope as ds

callbacks = []


def subscribe():
    buffer = np.zeros(3000)  # LEAK

    def on_end():
        return buffer.sum()

    callbacks.append(on_end)


for step in range(60):
    subscribe()
    with ds.dispose_scope("step"):
        np.ones(100).sum()
