"""The first batch is taken from a generator that is never finished, and stays suspended inside its scope.

kind: suspended
holder: batches
"""

import numpy as np

import disposescope as ds


def batches():
    with ds.dispose_scope("batches"):  # LEAK
        while True:
            batch = np.zeros(50_000)
            yield batch


source = batches()
shape = next(source).shape
