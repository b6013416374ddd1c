"""Futures are dropped once their results are used."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import disposescope as ds


def transform(step):
    return np.full(3000, step)


with ThreadPoolExecutor(1) as pool:
    for step in range(60):
        future = pool.submit(transform, step)
        future.result()
        with ds.dispose_scope("step"):
            np.ones(100).sum()
