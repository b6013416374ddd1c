"""The data of every packed batch is moved out, for a statistic that needs its mean only.

kind: growth
holder: module __main__.seen
"""

import numpy as np

import disposescope as ds

seen = []


def sequences(step):
    return [np.full((length, 16), step, dtype=np.float32) for length in (30, 20, 10)]


for step in range(60):
    with ds.dispose_scope("batch") as scope:
        packed = ds.pack_sequence(sequences(step))  # LEAK
        seen.append(scope.move_to_outer(packed))
