"""A metric keeps whole arrays instead of the number that it needs.

kind: escaped, growth
holder: module __main__.history
"""

import numpy as np

import disposescope as ds

history = []


def evaluate(step):
    errors = np.full(4000, float(step))  # LEAK
    history.append(errors)
    return errors.mean()


for step in range(60):
    with ds.dispose_scope("step"):
        evaluate(step)
