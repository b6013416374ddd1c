"""They are numbers."""

import jax.numpy as jnp

import disposescope as ds

history = []

for step in range(60):
    loss = jnp.full((500,), float(step))
    with ds.dispose_scope("step"):
        history.append(float(loss.sum()))
