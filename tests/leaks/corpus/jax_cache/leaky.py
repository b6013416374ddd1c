"""Embeddings are cached by a key that never comes again.

kind: growth, escaped
holder: module __main__.embeddings
"""

import jax.numpy as jnp

import disposescope as ds

embeddings = {}


def embed(step):
    embeddings[step] = jnp.zeros(1000) + step  # LEAK
    return embeddings[step]


for step in range(60):
    vector = embed(step)
    with ds.dispose_scope("step"):
        float(vector.sum())
