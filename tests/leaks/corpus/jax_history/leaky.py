"""The losses of a training loop stay on the device, as arrays in a list.

kind: growth, escaped
holder: module __main__.history
"""

import jax.numpy as jnp

import disposescope as ds

history = []

for step in range(60):
    loss = jnp.full((500,), float(step))  # LEAK
    history.append(loss)
    with ds.dispose_scope("step"):
        float(loss.sum())
