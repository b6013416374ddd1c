"""There is one at a time."""

import jax.numpy as jnp

import disposescope as ds

schedules = {}


def schedule(step):
    weights = jnp.linspace(0.0, float(step), 800)
    schedules["now"] = lambda: weights


for step in range(60):
    schedule(step)
    with ds.dispose_scope("step"):
        float(jnp.ones(10).sum())
