"""The first batch comes from a generator that is never finished and stays suspended in its scope.

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
