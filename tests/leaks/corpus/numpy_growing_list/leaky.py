"""Frames of a video are collected outside of the scope of a step, and never cleared.

kind: growth
holder: module __main__.recorder._frames
"""

import numpy as np

import disposescope as ds


class Recorder:
    def __init__(self):
        self._frames = []

    def record(self, value):
        self._frames.append(np.full((32, 32), value, dtype=np.uint8))  # LEAK


recorder = Recorder()
for step in range(60):
    recorder.record(step)
    with ds.dispose_scope("step"):
        np.ones(1000).sum()
