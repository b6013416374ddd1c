"""The consumer takes all that is there."""

import queue

import numpy as np

import disposescope as ds

pending = queue.Queue(maxsize=4)

for step in range(60):
    pending.put(np.full(2000, step))
    pending.put(np.full(2000, -step))
    while not pending.empty():
        pending.get()
    with ds.dispose_scope("step"):
        np.ones(100).sum()
