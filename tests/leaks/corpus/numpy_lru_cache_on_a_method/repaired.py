"""The cache is as large as what is used again."""

import functools

import numpy as np


class Filter:
    @functools.lru_cache(maxsize=2)  # noqa: B019
    def weights(self, width):
        grid = np.arange(2000.0)
        return (grid / width).copy()


for step in range(80):
    Filter().weights(1.0 + step)
