"""Deferred work is done and dropped every few steps."""

from functools import partial

import numpy as np

import disposescope as ds

deferred = []


def write(batch, name):
    return f"{name}: {batch.sum()}"


for step in range(60):
    deferred.append(partial(write, np.full(2000, step), name=f"{step}.npy"))
    if len(deferred) == 5:
        for job in deferred:
            job()
        deferred.clear()
        job = None
    with ds.dispose_scope("step"):
        np.ones(100).sum()
