"""Deferred work holds its arguments: functools.partial in a list that is never run.

kind: growth
holder: module __main__.deferred
"""

from functools import partial

import numpy as np

import disposescope as ds

deferred = []


def write(batch, name):
    return f"{name}: {batch.sum()}"


for step in range(60):
    deferred.append(partial(write, np.full(2000, step), name=f"{step}.npy"))  # LEAK
    with ds.dispose_scope("step"):
        np.ones(100).sum()
