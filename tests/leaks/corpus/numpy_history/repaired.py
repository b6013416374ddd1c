"""Keeps the number."""

import numpy as np

import disposescope as ds

history = []


def evaluate(step):
    errors = np.full(4000, float(step))
    history.append(float(errors.mean()))
    return errors.mean()


for step in range(60):
    with ds.dispose_scope("step"):
        evaluate(step)
