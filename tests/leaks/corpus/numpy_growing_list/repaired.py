"""Keeps the last frames only, as a ring."""

from collections import deque

import numpy as np

import disposescope as ds


class Recorder:
    def __init__(self):
        self._frames = deque(maxlen=8)

    def record(self, value):
        self._frames.append(np.full((32, 32), value, dtype=np.uint8))


recorder = Recorder()
for step in range(60):
    recorder.record(step)
    with ds.dispose_scope("step"):
        np.ones(1000).sum()
