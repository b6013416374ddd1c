"""Futures keep their results; the list of them is only ever appended to.

kind: growth
holder: module __main__.futures
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import disposescope as ds

futures = []


def transform(step):
    return np.full(3000, step)  # LEAK


with ThreadPoolExecutor(1) as pool:
    for step in range(60):
        futures.append(pool.submit(transform, step))
        futures[-1].result()
        with ds.dispose_scope("step"):
            np.ones(100).sum()
