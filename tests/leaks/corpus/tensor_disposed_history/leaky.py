"""Tensors of a step are appended to a list, and are dead handles after the step.

kind: escaped
holder: module __main__.losses
"""

import disposescope as ds

losses = []


def step_of(value):
    loss = ds.full((100,), value) * 2  # LEAK
    losses.append(loss)


for step in range(60):
    with ds.dispose_scope("step"):
        step_of(step)
