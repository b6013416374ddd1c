"""The producer is faster than the consumer, and the queue has no bound.

kind: growth
holder: queue
"""

import queue

import numpy as np

import disposescope as ds

pending = queue.Queue()

for step in range(60):
    pending.put(np.full(2000, step))  # LEAK
    pending.put(np.full(2000, -step))
    pending.get()
    with ds.dispose_scope("step"):
        np.ones(100).sum()
