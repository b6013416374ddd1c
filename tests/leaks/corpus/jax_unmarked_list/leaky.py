"""Samples of a chain are kept on the device, without any marks.

kind: growth
holder: module __main__.samples
"""

import jax.numpy as jnp

samples = []
state = jnp.zeros(500)

for step in range(120):
    state = state * 0.5 + step  # LEAK
    samples.append(state)
