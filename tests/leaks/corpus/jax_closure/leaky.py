"""Functions that close over arrays are registered each step.

kind: growth, escaped
holder: cell 'weights'
"""

import jax.numpy as jnp

import disposescope as ds

schedules = []


def schedule(step):
    weights = jnp.linspace(0.0, float(step), 800)  # LEAK
    schedules.append(lambda: weights)


for step in range(60):
    schedule(step)
    with ds.dispose_scope("step"):
        float(jnp.ones(10).sum())
