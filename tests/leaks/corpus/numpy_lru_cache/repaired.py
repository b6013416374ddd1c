"""The same cache with a bound."""

from functools import lru_cache

import numpy as np

import disposescope as ds


@lru_cache(maxsize=4)
def basis(seed):
    return np.random.default_rng(seed).standard_normal(2000)


for step in range(60):
    vector = basis(step)
    with ds.dispose_scope("step"):
        (vector + 1).sum()
