"""Errors are collected for a summary; their tracebacks hold the frames, and those the batches.

kind: exception, escaped
holder: batch
"""

import numpy as np

import disposescope as ds

errors = []


def load(step):
    batch = np.full(5000, step)  # LEAK
    if batch[0] >= 0:
        raise ValueError(f"sample {step} is broken")


for step in range(60):
    with ds.dispose_scope("step"):
        try:
            load(step)
        except ValueError as error:
            errors.append(error)
