"""A bounded memory that the caller owns."""

from collections import deque

import numpy as np

import disposescope as ds


def smooth(value, seen):
    seen.append(np.full(2500, value))
    return seen[-1].mean()


recent = deque(maxlen=3)
for step in range(60):
    smooth(step, recent)
    with ds.dispose_scope("step"):
        np.ones(100).sum()
