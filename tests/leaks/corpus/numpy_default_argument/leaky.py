"""A mutable default argument is one object for all calls.

kind: growth
holder: __defaults__
"""

import numpy as np

import disposescope as ds


def smooth(value, seen=[]):
    seen.append(np.full(2500, value))  # LEAK
    return seen[-1].mean()


for step in range(60):
    smooth(step)
    with ds.dispose_scope("step"):
        np.ones(100).sum()
