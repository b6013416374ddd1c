"""The generator is closed when it has served."""

from contextlib import closing

import numpy as np

import disposescope as ds


def batches():
    with ds.dispose_scope("batches"):
        while True:
            batch = np.zeros(50_000)
            yield batch


with closing(batches()) as source:
    shape = next(source).shape
