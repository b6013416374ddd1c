"""The statistic is made in the scope."""

import numpy as np

import disposescope as ds

seen = []


def sequences(step):
    return [np.full((length, 16), step, dtype=np.float32) for length in (30, 20, 10)]


for step in range(60):
    with ds.dispose_scope("batch"):
        packed = ds.pack_sequence(sequences(step))
        seen.append(float(packed.data.mean()))
