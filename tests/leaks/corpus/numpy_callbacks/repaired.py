"""Callbacks are called and dropped at the end of the step."""

import numpy as np

import disposescope as ds

callbacks = []


def subscribe():
    buffer = np.zeros(3000)

    def on_end():
        return buffer.sum()

    callbacks.append(on_end)


for step in range(60):
    subscribe()
    with ds.dispose_scope("step"):
        np.ones(100).sum()
    while callbacks:
        callbacks.pop()()
