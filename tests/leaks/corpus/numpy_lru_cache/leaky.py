"""functools.lru_cache without a bound, over an argument that always changes.

kind: growth
holder: basis
"""

from functools import lru_cache

import numpy as np

import disposescope as ds


@lru_cache(maxsize=None)
def basis(seed):
    return np.random.default_rng(seed).standard_normal(2000)  # LEAK


for step in range(60):
    vector = basis(step)
    with ds.dispose_scope("step"):
        (vector + 1).sum()
