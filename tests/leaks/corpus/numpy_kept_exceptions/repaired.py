"""Keeps the text of the errors."""

import numpy as np

import disposescope as ds

errors = []


def load(step):
    batch = np.full(5000, step)
    if batch[0] >= 0:
        raise ValueError(f"sample {step} is broken")


for step in range(60):
    with ds.dispose_scope("step"):
        try:
            load(step)
        except ValueError as error:
            errors.append(str(error))
