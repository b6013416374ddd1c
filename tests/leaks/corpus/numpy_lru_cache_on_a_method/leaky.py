"""functools.lru_cache on a method holds each Filter that it was called on, and what it returned.

kind: growth, cache
holder: Filter.weights.cache_clear()
"""

import functools

import numpy as np


class Filter:
    @functools.lru_cache(maxsize=None)  # noqa: B019
    def weights(self, width):
        grid = np.arange(2000.0)
        return (grid / width).copy()  # LEAK


for step in range(80):
    Filter().weights(1.0 + step)
